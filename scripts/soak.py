#!/usr/bin/env python3
"""A server under steady load for as long as wanted: two models of which one fits, clients that
ask, stream, go away in the middle and come back, and a configuration that changes. At the end
nothing may have failed, and memory, descriptors, threads and the ledger must not have grown: a
line is fitted through each, and its rise over the whole time must stay below a bound that
leaves room for noise.

`./dev bench soak --minutes 30`; with `--json` the figures are written as JSON. Standard library
only.
"""

import argparse
import contextlib
import http.client
import json
import os
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time

import server_process

GOLDEN = server_process.ROOT / "tests" / "data" / "golden" / "arch"
CHAT = "/v1/chat/completions"
# Share of the time that is not looked at: caches fill, memory pools find their size.
WARM_UP = 0.25
# What a fitted line may rise from its start to its end, of the figure's own mean or in its unit,
# whichever is more.
BOUNDS = {
    "anonymous_bytes": (0.05, 4 << 20),
    "descriptors": (0.0, 4),
    "threads": (0.0, 0.5),
    "ledger_bytes": (0.05, 1 << 20),
}
WORDS = "the river goes down over stones when it has rained for days and the fields fill".split()


class Load:
    """Clients of a server, and what became of their requests."""

    def __init__(self, server, seed, models):
        self.server, self.models = server, models
        self.random = random.Random(seed)
        self.lock = threading.Lock()
        self.counts = {"answered": 0, "streamed": 0, "cancelled": 0, "refused": 0}
        self.faults = []
        self.stop = threading.Event()
        self.busy_s = 0.0

    def count(self, what):
        with self.lock:
            self.counts[what] += 1

    def fault(self, text):
        with self.lock:
            self.faults.append(text)

    def body(self, rng, tokens):
        words = " ".join(rng.choice(WORDS) for _ in range(rng.randint(4, 60)))
        return {
            "model": rng.choice(self.models),
            "messages": [{"role": "user", "content": words}],
            "max_tokens": tokens,
        }

    def ask(self, rng):
        asked = self.body(rng, rng.randint(1, 40))
        status, headers, body = self.server.request("POST", CHAT, asked)
        if status == 200:
            usage = json.loads(body)["usage"]
            if usage["total_tokens"] < 1:
                self.fault(f"an answer without tokens: {body!r}")
            return self.count("answered")
        if status == 429 and "retry-after" in headers:
            return self.count("refused")
        self.fault(f"{status}: {body[:300]!r}")

    def stream(self, rng, leave):
        """Reads a stream to its end, or goes away after `leave` lines."""
        body = self.body(rng, 60) | {"stream": True}
        connection = self.server.connect()
        try:
            connection.request("POST", CHAT, json.dumps(body))
            response = connection.getresponse()
            if response.status == 429:
                return self.count("refused")
            if response.status != 200:
                return self.fault(f"{response.status}: {response.read()[:300]!r}")
            last = b""
            for number, line in enumerate(response):
                if leave is not None and number >= leave:
                    return self.count("cancelled")
                last = line if line.strip() else last
            if last.strip() != b"data: [DONE]":
                return self.fault(f"a stream ended with {last[:300]!r}")
            self.count("streamed")
        finally:
            connection.close()

    def client(self, number, pause):
        rng = random.Random(self.random.random() + number)
        while not self.stop.is_set():
            start = time.monotonic()
            try:
                kind = rng.random()
                if kind < 0.6:
                    self.ask(rng)
                else:
                    self.stream(rng, rng.randint(1, 20) if kind > 0.8 else None)
            except (OSError, http.client.HTTPException, ValueError) as error:
                if not self.stop.is_set():
                    self.fault(f"{type(error).__name__}: {error}")
            with self.lock:
                self.busy_s += time.monotonic() - start
            # At 80% load: idle a quarter of the time that was spent asking.
            self.stop.wait(pause * (time.monotonic() - start))


def reload_now_and_then(server, stop, every_s, counts):
    """Changes a model's settings in the file, as an editor would."""
    number = 0
    while not stop.wait(every_s):
        number += 1
        server.config["models"][1]["hot_keep_time"] = f"{number % 5}s"
        path = server.folder / "terrace.yaml"
        new = server.folder / "new.yaml"
        new.write_text(json.dumps(server.config))
        os.replace(new, path)
        counts["reloads"] = number


def sample(server, admin_port):
    pid = server.pid
    fields = dict(
        line.split(":", 1)
        for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines()
        if ":" in line
    )
    anonymous = int(fields["RssAnon"].split()[0]) + int(fields["VmSwap"].split()[0])
    state = json.loads(server.get("/admin/state", port=admin_port)[1])
    return {
        "anonymous_bytes": anonymous * 1024,
        "descriptors": len(os.listdir(f"/proc/{pid}/fd")),
        "threads": int(fields["Threads"]),
        "ledger_bytes": sum(tier["used_bytes"] for tier in state["tiers"]),
    }


def rise(times, values):
    """What the least-squares line through the points rises over their whole span."""
    mean_t, mean_v = sum(times) / len(times), sum(values) / len(values)
    spread = sum((t - mean_t) ** 2 for t in times)
    slope = sum((t - mean_t) * (v - mean_v) for t, v in zip(times, values)) / spread
    return slope * (times[-1] - times[0])


def check(samples):
    """(figures, faults) of the samples behind the warm-up."""
    kept = samples[int(len(samples) * WARM_UP) :]
    figures, faults = {}, []
    for name, (share, least) in BOUNDS.items():
        values = [values[name] for _, values in kept]
        mean = sum(values) / len(values)
        grown = rise([t for t, _ in kept], values)
        bound = max(share * mean, least)
        figures[name] = {"mean": mean, "rise": grown, "bound": bound}
        if grown > bound:
            faults.append(f"{name} rose by {grown:.0f} (at most {bound:.0f}), mean {mean:.0f}")
    return figures, faults


def run(minutes, clients, seed, folder):
    paths = {"first": GOLDEN / "qwen2.gguf", "second": GOLDEN / "qwen3.gguf"}
    room = max(path.stat().st_size for path in paths.values()) + (6 << 20)
    admin_port = server_process.free_port()
    config = {
        "models": [{"name": name, "source": str(path)} for name, path in paths.items()],
        "memory": {"device_budget": f"{room}B", "hot_keep_time": "0s"},
        "scheduler": {"max_wait": "200ms"},
        "server": {"admin_port": admin_port},
        "kv": {"disk_size": "64MiB"},
        "log": {"access": str(pathlib.Path(folder) / "access.log")},
    }
    counts = {"reloads": 0}
    with server_process.ServerProcess(config, folder) as server:
        load = Load(server, seed, list(paths))
        threads = [
            threading.Thread(target=load.client, args=(number, 0.25), daemon=True)
            for number in range(clients)
        ]
        threads.append(
            threading.Thread(
                target=reload_now_and_then,
                args=(server, load.stop, max(2.0, minutes * 60 / 100), counts),
                daemon=True,
            )
        )
        for thread in threads:
            thread.start()
        start, samples = time.monotonic(), []
        end = start + minutes * 60
        while time.monotonic() < end and not load.faults:
            time.sleep(min(2.0, minutes * 60 / 100))
            samples.append((time.monotonic() - start, sample(server, admin_port)))
        load.stop.set()
        for thread in threads:
            thread.join(60)
        metrics = {
            "swaps": server.metric("terrace_segment_evictions_total"),
            "reloads": server.metric("terrace_config_reloads_total", result="ok"),
            "rejected": server.metric("terrace_config_reloads_total", result="error"),
        }
        status = server.stop()
    figures, faults = check(samples)
    faults = load.faults + faults
    if status != 0:
        faults.append(f"the server ended with status {status}")
    for name in ("swaps", "reloads"):
        if metrics[name] < 1:
            faults.append(f"there were no {name}")
    if metrics["rejected"]:
        faults.append(f"{metrics['rejected']:.0f} changes of the configuration were rejected")
    if load.counts["cancelled"] < 1 or load.counts["answered"] < 1:
        faults.append(f"too little was asked: {load.counts}")
    return {
        "minutes": (samples[-1][0] / 60) if samples else 0,
        "requests": load.counts,
        "events": metrics,
        "growth": figures,
        "faults": faults,
    }


def main():
    parser = argparse.ArgumentParser(prog="./dev bench soak", description=__doc__.split("\n\n")[0])
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    # What is started here is stopped here, also when this is told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="terrace-soak-"))
        result = run(options.minutes, options.clients, options.seed, folder)
        if result["faults"]:
            log = pathlib.Path(folder) / "server.log"
            print(log.read_text(errors="replace")[-4000:], file=sys.stderr)
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        print(f"{result['minutes']:.1f} minutes, seed {options.seed}: {result['requests']}")
        print(f"{result['events']}")
        for name, figure in result["growth"].items():
            print(
                f"{name:<16} mean {figure['mean']:>14,.0f}  rise {figure['rise']:>12,.0f}"
                f"  bound {figure['bound']:>12,.0f}"
            )
        for fault in result["faults"][:20]:
            print(f"FAULT: {fault}")
    return 1 if result["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
