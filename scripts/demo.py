#!/usr/bin/env python3
"""Two real models behind one endpoint, in a device budget that holds only one of them.

Fetches the models, starts a server, asks both in turn for several rounds at temperature 0, checks
that each answers the same in every round, and prints what a switch costs. Exits non-zero if a text
differs, if the answers make no sense, or if the budget was passed. Standard library only.
"""

import argparse
import shutil
import statistics
import sys

import models
import server_process

MIB = 1 << 20

# Each model's endpoint and request (SmolLM2 follows instructions, this Gemma continues text), and a
# word that an answer which makes sense has.
QUESTIONS = {
    "smollm2-135m": (
        "/v1/chat/completions",
        {
            "messages": [{"role": "user", "content": "Why is the sky blue?"}],
            "max_tokens": 48,
        },
        "Rayleigh",
    ),
    "gemma3-270m": (
        "/v1/completions",
        {"prompt": "A short list of fruits: apples, bananas,", "max_tokens": 48},
        "oranges",
    ),
}


def choose_budget(paths):
    """Bytes that hold the largest model with room for its KV cache and workspace, but not both."""
    sizes = [path.stat().st_size for path in paths.values()]
    budget = int(max(sizes) * 1.05) + 40 * MIB
    if budget >= sum(sizes):
        raise server_process.ServerError("these models are too small to compete for the budget")
    return budget // MIB * MIB


def ask(server, name):
    path, body, _ = QUESTIONS[name]
    return server.stream(path, body | {"model": name, "temperature": 0})


class Row:
    """What one model showed."""

    def __init__(self):
        self.text = None
        self.cold = None
        self.switched, self.hot, self.rate, self.moved = [], [], [], []


def play(server, rounds, rows):
    """Asks both models in turn, each twice: after the switch to it, and hot. Returns the faults and
    the most bytes that the device tier held."""
    faults, peak = [], 0
    for number in range(1, rounds + 1):
        for name, row in rows.items():
            before = server.metric("terrace_link_bytes_total")
            first = ask(server, name)
            moved = server.metric("terrace_link_bytes_total") - before
            again = ask(server, name)
            if row.cold is None:
                row.cold, row.text = first.first_token_s, first.text
                print(f"\n{name}:\n  {first.text.strip()}\n", flush=True)
            else:
                row.switched.append(first.first_token_s)
                row.moved.append(moved)
            row.hot.append(again.first_token_s)
            row.rate.append(again.tokens_per_s)
            for answer in (first, again):
                if answer.text != row.text:
                    faults.append(
                        f"{name} in round {number} said {answer.text!r}, not {row.text!r}"
                    )
            peak = max(peak, server.metric("terrace_memory_bytes", tier="device"))
        print(f"round {number} of {rounds}", file=sys.stderr, flush=True)
    for name, row in rows.items():
        if QUESTIONS[name][2].lower() not in row.text.lower():
            faults.append(f"{name} makes no sense: {row.text!r} lacks {QUESTIONS[name][2]!r}")
        if not any(row.moved):
            faults.append(f"no bytes moved on a switch to {name}: both models fitted")
    return faults, peak


def table(rows, peak, budget):
    head = [
        "model",
        "cold TTFT",
        "switched TTFT",
        "hot TTFT",
        "tokens/s",
        "moved a switch",
        "device use",
    ]
    lines = [head]
    for name, row in rows.items():
        lines.append(
            [
                name,
                f"{row.cold * 1e3:.0f} ms",
                f"{statistics.median(row.switched) * 1e3:.0f} ms",
                f"{statistics.median(row.hot) * 1e3:.0f} ms",
                f"{statistics.median(row.rate):.1f}",
                f"{statistics.median(row.moved) / MIB:.0f} MiB",
                f"{peak / MIB:.0f} of {budget / MIB:.0f} MiB",
            ]
        )
    widths = [max(len(line[i]) for line in lines) for i in range(len(head))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip())


def main():
    parser = argparse.ArgumentParser(description="two real models in a budget that holds one")
    parser.add_argument(
        "--rounds", type=int, default=4, help="times that each model is asked (default 4)"
    )
    parser.add_argument(
        "--device", default="cpu", help="what computes: a device.kind (default cpu)"
    )
    arguments = parser.parse_args()
    rounds = max(2, arguments.rounds)
    try:
        paths = {
            name: models.fetch(name, lambda text: print(text, file=sys.stderr, flush=True))
            for name in QUESTIONS
        }
        budget = choose_budget(paths)
        folder = server_process.ROOT / "build" / "demo"
        shutil.rmtree(folder, ignore_errors=True)  # So that the first load is cold.
        config = {
            "memory": {"device_budget": f"{budget}B", "hot_keep_time": "0s"},
            # What comes from the cache is read in other pieces than at first: by default an answer
            # may then differ by rounding, and here each has to be the first one's word for word.
            "device": {"kind": arguments.device, "deterministic": True},
            "models": [
                {"name": name, "source": str(path), "max_context": 2048}
                for name, path in paths.items()
            ],
        }
        sizes = " + ".join(f"{path.stat().st_size / MIB:.0f}" for path in paths.values())
        print(f"Models of {sizes} MiB in a device budget of {budget / MIB:.0f} MiB.", flush=True)
        rows = {name: Row() for name in paths}
        with server_process.ServerProcess(config, folder) as server:
            faults, peak = play(server, rounds, rows)
    except (models.FetchError, server_process.ServerError, OSError) as error:
        sys.exit(f"demo: {error}")
    table(rows, peak, budget)
    if peak > budget:
        faults.append(f"the device tier held {peak:.0f} bytes, more than its budget")
    for fault in faults:
        print(f"demo: {fault}", file=sys.stderr)
    if not faults:
        print(f"Both models gave the same text in each of {rounds} rounds.")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
