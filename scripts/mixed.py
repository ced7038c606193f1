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
# Of requests alone and beside the load, in turn.
ROUNDS = 4


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

    def __init__(self, server, tenant, sla, scope="infer"):
        command = [str(server.binary), "key", "add", tenant, "--tenant", tenant, "--sla", sla]
        command += ["--scope", scope]
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
    as its client sees it, and the number of its trace."""
    connection = client.server.connect()
    asked, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        seed = next(seeds)
        body = json.dumps(client.body(model, words, tokens, seed, stream=False))
        trace = {"traceparent": f"00-{seed:032x}-{1:016x}-01"}
        start = time.monotonic()
        connection.request("POST", CHAT, body, client.headers | trace)
        response = connection.getresponse()
        text = response.read()
        asked.append((time.monotonic() - start, seed))
        if response.status != 200:
            raise RuntimeError(f"{response.status}: {text[:300]!r}")
        time.sleep(pause)
    connection.close()
    return asked


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
        "server": {"admin_port": server_process.free_port()},
    }


def mixed(folder, report, scale):
    with server_process.ServerProcess(mixed_config(folder), pathlib.Path(folder) / "s") as server:
        quick = Client(server, "quick", "realtime")
        writer = Client(server, "writer", "standard")
        night = Client(server, "night", "batch")
        operator = Client(server, "ops", "standard", scope="admin")
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
        # Capacity: generations a second with as many at once as wanted.
        among = [
            client.planned(0, name, 30, tokens, seed, again=True)
            for client, name in ((writer, "x"), (night, "y"))
            for seed in range(4)
        ]
        took_s, made = Load(server, among, 10 * scale).end()
        capacity = len(made) / took_s
        print(
            f"a generation of {tokens} tokens takes {one * tokens / 64:.1f} s alone; {len(made)} of"
            f" {len(among)} at once end in {took_s:.1f} s",
            file=sys.stderr,
        )
        alone, loaded, generations = [], [], []
        seconds = 8 * scale
        # In turn, so that a slow moment of the machine falls on both, and each beside its own.
        for turn in range(ROUNDS):
            alone.append(short(5 * scale))
            load = Load(
                server,
                paced(writer, ["x", "y"], 30, tokens, 0.5 * capacity, seconds, 2 * turn + 3)
                + paced(night, ["y", "x"], 30, tokens, 0.7 * capacity, seconds, 2 * turn + 4),
                seconds,
            )
            loaded.append(short(seconds))
            took_s, results = load.end()
            generations += results
            print(
                f"round {turn + 1}: {statistics.mean(took for took, _ in alone[-1]) * 1e3:.1f} ms"
                f" alone, {statistics.mean(took for took, _ in loaded[-1]) * 1e3:.1f} ms beside"
                f" {len(results)} generations, the last of which ended after {took_s:.1f} s",
                file=sys.stderr,
            )
        swaps = server.metric("terrace_segment_evictions_total")
        parts = request_parts(server, operator.headers)
    refused = sum(each["refused"] for each in generations)
    print(
        f"{sum(map(len, alone))} and {sum(map(len, loaded))} short requests in {ROUNDS} rounds,"
        f" {len(generations)} generations of {tokens} tokens, {refused} refused, capacity"
        f" {capacity:.2f}/s, {swaps:.0f} evictions",
        file=sys.stderr,
    )
    tell_parts(alone, loaded, parts)
    times = [[[took for took, _ in asked] for asked in each] for each in (alone, loaded)]
    tell_mixed(report, *times, generations, seconds)


def request_parts(server, headers):
    """Seconds of each request's parts as the server saw them, by the number of its trace."""
    port = server.config["server"]["admin_port"]
    status, body = server.get("/admin/traces", port=port, headers=headers)
    if status != 200:
        raise RuntimeError(f"/admin/traces: {status}")
    requests, parts = {}, {}
    for event in json.loads(body)["traceEvents"]:
        if event.get("ph") != "X":
            continue
        if "args" in event and "trace_id" in event["args"]:
            requests[event["tid"]] = parts.setdefault(int(event["args"]["trace_id"], 16), {})
            requests[event["tid"]]["server"] = event["dur"] * 1e-6
        else:
            requests[event["tid"]][event["name"]] = event["dur"] * 1e-6
    return parts


PARTS = ("client", "prepare", "queue", "swap", "prefill", "decode")


def split(took, parts):
    """Where a request's time went: beside the server, before its queue, in each part."""
    out = {name: parts.get(name, 0) for name in ("queue", "swap", "prefill", "decode")}
    out["prefill"] -= out["swap"]
    known = sum(out.values())
    return out | {"client": took - parts["server"], "prepare": parts["server"] - known}


def tell_parts(alone, loaded, parts):
    """What the slowest tenth of the loaded requests waited for, beside the others."""
    def rows(rounds):
        asked = [one for each in rounds for one in each]
        return sorted((took, split(took, parts[seed])) for took, seed in asked if seed in parts)

    def line(name, chosen):
        means = [statistics.mean(part[each] for _, part in chosen) * 1e3 for each in PARTS]
        total = statistics.mean(took for took, _ in chosen) * 1e3
        print(f"{name:<28}{len(chosen):>5}{total:>9.1f}" + "".join(f"{x:>9.1f}" for x in means),
              file=sys.stderr)

    one, other = rows(alone), rows(loaded)
    if not one or not other:
        return
    print(f"{'mean ms of':<28}{'':>5}{'whole':>9}" + "".join(f"{name:>9}" for name in PARTS),
          file=sys.stderr)
    for name, chosen in (("alone", one), ("loaded", other)):
        line(name, chosen)
        line(f"{name}, slowest tenth", chosen[-max(1, len(chosen) // 10):])
        line(f"{name}, quickest half", chosen[: max(1, len(chosen) // 2)])


def pooled_variance(rounds):
    """Of requests about the mean of their own round: what the machine drifts by between rounds is
    not counted."""
    usable = [each for each in rounds if len(each) > 1]
    squares = sum(statistics.variance(each) * (len(each) - 1) for each in usable)
    return squares / sum(len(each) - 1 for each in usable)


def added_share(alone, loaded):
    """The standard deviation that the load adds, over the mean alone: variances of independent
    causes add up. Below 0 (as a variance) counts as 0."""
    added = pooled_variance(loaded) - pooled_variance(alone)
    return math.sqrt(max(0.0, added)) / statistics.mean(sum(alone, []))


def interval(alone, loaded, figure, tries=400):
    """The middle 90% of a figure over samples drawn again from the same rounds."""
    rng = random.Random(5)

    def again(rounds):
        return [rng.choices(each, k=len(each)) for each in rounds]

    values = sorted(figure(again(alone), again(loaded)) for _ in range(tries))
    return values[int(tries * 0.05)], values[int(tries * 0.95)]


def tell_mixed(report, alone_rounds, loaded_rounds, generations, seconds):
    alone, loaded = sum(alone_rounds, []), sum(loaded_rounds, [])
    mean = statistics.mean(alone)
    beside = "realtime beside generations: "

    def ratio(one, other):
        return statistics.mean(sum(other, [])) / statistics.mean(sum(one, []))

    low, high = interval(alone_rounds, loaded_rounds, ratio)
    report.row(beside + "mean of short requests", statistics.mean(loaded), "s", mean, most=1.05)
    print(f"    90% interval {low:.3f} to {high:.3f}", file=sys.stderr)
    deviation = math.sqrt(pooled_variance(alone_rounds))
    report.row(beside + "mean's distance, in standard deviations of one alone",
               abs(statistics.mean(loaded) - mean) / deviation, "")
    report.row(beside + "standard deviation of short requests, over their mean alone",
               math.sqrt(pooled_variance(loaded_rounds)) / mean, "share", most=0.05)
    report.row("realtime alone: standard deviation over mean", deviation / mean, "share")
    low, high = interval(alone_rounds, loaded_rounds, added_share)
    report.row("realtime: standard deviation that the load adds, over the mean alone",
               added_share(alone_rounds, loaded_rounds), "share", most=0.05)
    print(f"    90% interval {low:.3f} to {high:.3f}", file=sys.stderr)
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
