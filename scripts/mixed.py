#!/usr/bin/env python3
"""Several tenants on one server: what each sees of the others.

`./dev bench mixed`: short realtime requests beside generations of seconds, of three tenants, on
three models of which two swap; then more generations than the machine can make. `./dev bench
isolation`: one tenant's short requests beside another's endless prompts of 32k tokens.

Every row is measured beside its reference in the same run. Standard library only.
"""

import argparse
import itertools
import json
import math
import pathlib
import random
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time

import server_process

CHAT = "/v1/completions"
# Goals of the classes: seconds from arrival to the end (realtime) or to the first token.
REALTIME_GOAL_FACTOR = 1.5  # of the unloaded 99th percentile
STANDARD_GOAL_S = 5.0
BATCH_GOAL_S = 30.0


def percentile(values, share):
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def make_model(folder, name, seed, context=None):
    tool = server_process.default_binary().parent / "terrace_make_model"
    path = pathlib.Path(folder) / f"{name}.gguf"
    subprocess.run([str(tool), "small", "Q4_0", str(seed), str(path)], check=True)
    if context is not None:
        # The length is a number in the file's head, behind its key and its type.
        whole = bytearray(path.read_bytes())
        key = b".context_length"
        at = whole.index(key) + len(key) + 4
        whole[at : at + 4] = struct.pack("<I", context)
        path.write_bytes(whole)
    return path


class Client:
    """Requests of one tenant with its key."""

    def __init__(self, server, tenant, sla):
        command = [str(server.binary), "key", "add", tenant, "--tenant", tenant, "--sla", sla]
        command += ["--json", "--config", str(server.folder / "terrace.yaml")]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        self.server, self.tenant = server, tenant
        self.headers = {
            "Authorization": "Bearer " + json.loads(done.stdout)["key"],
            "Content-Type": "application/json",
        }

    @staticmethod
    def body(model, words, tokens, seed, stream=True):
        rng = random.Random(seed)
        return {
            "model": model,
            "prompt": " ".join(rng.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(words)),
            "max_tokens": tokens,
            "temperature": 0,
            "stream": stream,
        }

    def planned(self, at, model, words, tokens, seed, again=False):
        """A request for mixed_load.py."""
        return {
            "name": self.tenant,
            "at": at,
            "path": CHAT,
            "headers": self.headers,
            "body": self.body(model, words, tokens, seed),
            "again": again,
        }

    def ask(self, model, words, tokens, seed, timeout_s=300):
        """(seconds to the first token, seconds to the end), or None if it was refused."""
        body = self.body(model, words, tokens, seed)
        connection = self.server.connect(timeout_s)
        try:
            start = time.monotonic()
            connection.request("POST", CHAT, json.dumps(body), self.headers)
            response = connection.getresponse()
            if response.status in (429, 503):
                return None
            if response.status != 200:
                raise RuntimeError(f"{response.status}: {response.read()[:300]!r}")
            first = None
            for line in response:
                if first is None and line.startswith(b"data: "):
                    first = time.monotonic() - start
                if b'"error"' in line:
                    raise RuntimeError(line.decode())
            return first, time.monotonic() - start
        finally:
            connection.close()


class Report:
    def __init__(self, as_json):
        self.rows, self.as_json = [], as_json

    def row(self, law, measured, unit, reference=None, least=None, most=None):
        holds = None
        value = measured / reference if reference else measured
        if least is not None:
            holds = value >= least
        if most is not None:
            holds = value <= most
        self.rows.append(
            {
                "law": law,
                "measured": measured,
                "unit": unit,
                "reference": reference,
                "goal": least if least is not None else most,
                "holds": holds,
            }
        )
        if not self.as_json:
            beside = f"  reference {reference:.4g}, ratio {value:.3f}" if reference else ""
            goal = f"  goal >= {least}" if least is not None else ""
            goal = f"  goal <= {most}" if most is not None else goal
            word = {True: "holds", False: "MISSED", None: ""}[holds]
            print(f"{law:<78} {measured:9.4g} {unit}{beside}{goal}  {word}", flush=True)

    def end(self):
        if self.as_json:
            print(json.dumps(self.rows, indent=1))
        return 0 if all(row["holds"] is not False for row in self.rows) else 1


def paced(client, models, words, tokens, rate, seconds, seed):
    """Requests at moments of a Poisson process, whatever has been answered by then."""
    rng = random.Random(seed)
    planned, at = [], rng.expovariate(rate)
    while at < seconds:
        number = len(planned)
        model = models[number % len(models)]
        planned.append(client.planned(at, model, words, tokens, seed * 1000 + number))
        at += rng.expovariate(rate)
    return planned


class Load:
    """mixed_load.py with a plan: begun at once, ended when all of it has been answered."""

    def __init__(self, server, requests, seconds):
        script = pathlib.Path(__file__).with_name("mixed_load.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        json.dump({"port": server.port, "seconds": seconds, "requests": requests},
                  self.process.stdin)
        self.process.stdin.close()
        if self.process.stdout.readline().strip() != "ready":
            raise RuntimeError("the load did not start")

    def end(self):
        """(seconds, results)"""
        told = json.loads(self.process.stdout.read())
        self.process.wait()
        for each in told["results"]:
            if each["error"]:
                raise RuntimeError(f"{each['name']}: {each['error']}")
        return told["seconds"], told["results"]


def short_requests(client, model, words, tokens, seconds, pause, seeds):
    """One short request after the other on one connection, all of different texts: what each took,
    as its client sees it."""
    connection = client.server.connect()
    took, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        body = json.dumps(client.body(model, words, tokens, next(seeds), stream=False))
        start = time.monotonic()
        connection.request("POST", CHAT, body, client.headers)
        response = connection.getresponse()
        text = response.read()
        took.append(time.monotonic() - start)
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {text[:300]!r}")
        time.sleep(pause)
    connection.close()
    return took


def steady(client, model, words, tokens, seconds, pause, out):
    """One request after the other, with a pause between."""
    end, number = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        number += 1
        out.append(client.ask(model, words, tokens, number))
        time.sleep(pause)


def mixed_config(folder):
    paths = {name: make_model(folder, name, seed) for seed, name in enumerate(("r", "x", "y"), 1)}
    size = max(path.stat().st_size for path in paths.values())
    models = [{"name": name, "source": str(path)} for name, path in paths.items()]
    models[0] |= {"sla": "realtime"}
    return {
        "models": models,
        # The realtime model and one of the two others, with KV and workspace.
        "memory": {"device_budget": f"{int(size * 2.3) + (48 << 20)}B", "hot_keep_time": "0s"},
        "scheduler": {"max_wait": "1s", "aging": "15s"},
        "kv": {"disk_size": "off"},
    }


def mixed(folder, report, scale):
    with server_process.ServerProcess(mixed_config(folder), pathlib.Path(folder) / "s") as server:
        quick = Client(server, "quick", "realtime")
        writer = Client(server, "writer", "standard")
        night = Client(server, "night", "batch")
        time.sleep(1.5)  # the keys are seen
        for client, name in ((quick, "r"), (writer, "x"), (night, "y"), (quick, "r")):
            client.ask(name, 30, 4, 1)
        # How long a generation of some seconds is: measured, for the machine is what it is.
        _, one = writer.ask("x", 30, 64, 2)
        tokens = max(32, min(1500, int(64 * 3.0 * scale / one)))

        seeds = itertools.count(1_000_000)

        def short(seconds):
            # A text of some lines, and the name of a class.
            return short_requests(quick, "r", 300, 8, seconds, 0.1, seeds)

        short(1)
        alone = short(8 * scale)
        # Capacity: generations a second with as many at once as wanted.
        among = [
            client.planned(0, name, 30, tokens, seed, again=True)
            for client, name in ((writer, "x"), (night, "y"))
            for seed in range(4)
        ]
        took_s, made = Load(server, among, 10 * scale).end()
        capacity = len(made) / took_s
        seconds = 30 * scale
        load = Load(
            server,
            paced(writer, ["x", "y"], 30, tokens, 0.5 * capacity, seconds, 3)
            + paced(night, ["y", "x"], 30, tokens, 0.7 * capacity, seconds, 4),
            seconds,
        )
        loaded = short(seconds)
        _, generations = load.end()
        swaps = server.metric("terrace_segment_evictions_total")
        time.sleep(1)
        alone += short(4 * scale)
    refused = sum(each["refused"] for each in generations)
    print(
        f"{len(alone)} and {len(loaded)} short requests, {len(generations)} generations of"
        f" {tokens} tokens, {refused} refused, capacity {capacity:.2f}/s, {swaps:.0f} evictions",
        file=sys.stderr,
    )
    tell_mixed(report, alone, loaded, generations, seconds)


def tell_mixed(report, alone, loaded, generations, seconds):
    mean = statistics.mean(alone)
    beside = "realtime beside generations: "
    report.row(beside + "mean of short requests", statistics.mean(loaded), "s", mean, most=1.05)
    report.row(beside + "standard deviation of short requests, over their mean alone",
               statistics.stdev(loaded) / mean, "share", most=0.05)
    report.row("realtime alone: standard deviation over mean", statistics.stdev(alone) / mean,
               "share")
    # What the load adds: variances of independent causes add up.
    added = max(0.0, statistics.variance(loaded) - statistics.variance(alone))
    report.row("realtime: standard deviation that the load adds, over the mean alone",
               math.sqrt(added) / mean, "share", most=0.05)
    for name, share in (("median", 0.5), ("p90", 0.9), ("p99", 0.99), ("longest", 1)):
        report.row(beside + name, percentile(loaded, share), "s", percentile(alone, share))
    goal = REALTIME_GOAL_FACTOR * percentile(alone, 0.99)
    met = sum(total <= goal for total in loaded)
    goals = {"writer": STANDARD_GOAL_S, "night": BATCH_GOAL_S}
    met += sum(not each["refused"] and each["first"] <= goals[each["name"]] for each in generations)
    report.row("1.2x of capacity: requests within their class's goal",
               met / (len(loaded) + len(generations)), "share", least=0.95)
    for name, word in (("writer", "standard"), ("night", "batch")):
        firsts = [each["first"] for each in generations
                  if each["name"] == name and not each["refused"]]
        report.row(f"1.2x of capacity: longest wait of a {word} request", max(firsts), "s",
                   most=BATCH_GOAL_S + seconds if name == "night" else None)


def isolation(folder, report, scale):
    path = make_model(folder, "m", 1, 40960)
    config = {
        "models": [{"name": "m", "source": str(path)}],
        "memory": {"device_budget": "4GiB"},
        "kv": {"disk_size": "off"},
    }
    with server_process.ServerProcess(config, pathlib.Path(folder) / "server") as server:
        modest, greedy = Client(server, "modest", "standard"), Client(server, "greedy", "standard")
        time.sleep(1.5)
        for seed in range(5):
            modest.ask("m", 40, 8, seed)
        sample = {"model": "m", "prompt": " ".join("abcdefghijklmnopqrstuvwxyz" * 10)}
        _, _, text = server.request("POST", "/tokenize", sample, modest.headers)
        words = int(32_000 / (len(json.loads(text)["tokens"]) / 260))
        stop = threading.Event()
        long = {"asked": 0, "cut": 0}

        def endless():
            while not stop.is_set():
                long["asked"] += 1
                # Whoever asks for so much and waits no longer than that asks anew at once.
                try:
                    greedy.ask("m", words, 1, 1000 + long["asked"], timeout_s=20 * scale)
                except OSError:
                    long["cut"] += 1

        # In turn, so that a slow moment of the machine falls on both.
        alone, beside = [], []
        for _ in range(2):
            steady(modest, "m", 40, 16, 10 * scale, 0.05, alone)
            stop.clear()
            thread = threading.Thread(target=endless, daemon=True)
            thread.start()
            time.sleep(1.5 * scale)
            before = server.metric("terrace_tenant_compute_seconds_total", tenant="greedy")
            steady(modest, "m", 40, 16, 14 * scale, 0.05, beside)
            greedy_s = server.metric("terrace_tenant_compute_seconds_total", tenant="greedy")
            stop.set()
            thread.join()
    print(
        f"{len(alone)} and {len(beside)} short requests, {long['asked']} long prompts; in the last"
        f" round the greedy tenant computed for {greedy_s - before:.1f} s",
        file=sys.stderr,
    )
    alone, beside = [[total for _, total in each] for each in (alone, beside)]
    for name, share in (("median", 0.5), ("p90", 0.9), ("p99", 0.99)):
        report.row(f"short requests beside endless prompts of 32k tokens: {name}",
                   percentile(beside, share), "s", percentile(alone, share),
                   most=1.10 if share > 0.98 else None)
    report.row("the same: computing that the greedy tenant got", greedy_s - before, "s",
               least=math.ulp(1))


def main():
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__.split("\n\n")[0])
    parser.add_argument("which", choices=["mixed", "isolation"])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--quick", action="store_true", help="short: to see that it runs")
    parser.add_argument("--scale", type=float, default=1, help="of the times")
    options = parser.parse_args()
    report = Report(options.json)
    with tempfile.TemporaryDirectory(prefix="terrace-mixed-") as folder:
        run = mixed if options.which == "mixed" else isolation
        run(folder, report, 0.25 if options.quick else options.scale)
    code = report.end()
    return 0 if options.quick else code


if __name__ == "__main__":
    sys.exit(main())
