"""kill -9 at random moments: during import, while models are switched, while KV is written back.
After each restart nothing bad is served, no finished image is lost and no byte of disk has leaked.

TERRACE_CRASHES sets how often (default 10; the law is 100), TERRACE_CRASH_SEED where it begins.
"""

import os
import pathlib
import random
import shutil
import threading
import time

import pytest
import server_process
from conftest import make_model

CRASHES = int(os.environ.get("TERRACE_CRASHES", "10"))
SEED = int(os.environ.get("TERRACE_CRASH_SEED", "1"))
MIB = 1 << 20
KV_CAP = 4 * MIB
# Longer than a KV block, asked for again and again: such blocks are written to disk.
PROMPTS = [[(17 * i + 5 * p) % 250 for i in range(100)] for p in range(4)]


# Nothing is decided by time: this only ends a run that hangs. Under load a restart takes a minute.
HANGS_S = 600


def ask(server, model, prompt, timeout_s=HANGS_S):
    body = {"model": model, "prompt": prompt, "max_tokens": 4, "temperature": 0}
    return server.post("/v1/completions", body, timeout_s=timeout_s)


def images(store):
    """Inode of blocks.bin by finished image."""
    found = {}
    for folder in (store / "images").glob("*"):
        if not folder.name.endswith((".importing", ".removed")):
            found[folder.name] = (folder / "blocks.bin").stat().st_ino
    return found


def leftovers(store):
    names = [str(path.relative_to(store)) for path in store.rglob("*")]
    return [n for n in names if n.endswith((".importing", ".removed", ".partial"))]


def physical_bytes(folder):
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_blocks * 512
        except FileNotFoundError:
            pass
    return total


class Load:
    """Clients that ask for both models in turn until the server is gone."""

    def __init__(self, server, expected):
        self.wrong = []
        self.answers = 0
        self.server, self.expected = server, expected
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(2)]
        for thread in self.threads:
            thread.start()

    def run(self, number):
        turn = number
        while True:
            model = ("a", "b")[turn % 2]
            prompt = turn // 2 % len(PROMPTS)
            turn += 1
            try:
                status, answer = ask(self.server, model, PROMPTS[prompt])
            except Exception:
                return  # killed, or not there yet
            if status == 200:
                self.answers += 1
                if answer["choices"][0]["text"] != self.expected[model][prompt]:
                    self.wrong.append((model, prompt, answer))
            elif status not in (429, 503):
                self.wrong.append((model, prompt, answer))

    def join(self):
        for thread in self.threads:
            thread.join()
        return self.wrong


def wait_for(what, timeout_s=HANGS_S):
    deadline = time.monotonic() + timeout_s
    while not what():
        assert time.monotonic() < deadline, what.__name__
        time.sleep(0.02)


@pytest.fixture
def crash_server(servers, tmp_path):
    paths = {name: make_model("small", seed, tmp_path) for seed, name in enumerate("ab", 1)}
    size = max(path.stat().st_size for path in paths.values())
    return servers.start(
        paths,
        wait=False,
        memory={"device_budget": f"{size // MIB + 14}MiB", "hot_keep_time": "0s"},
        kv={"disk_size": f"{KV_CAP // MIB}MiB"},
        # Texts are compared whatever of their prompt the KV on disk spares.
        device={"deterministic": True},
    )


def test_kill_9_at_random_moments_harms_nothing(crash_server):
    server = crash_server
    store = pathlib.Path(server.folder) / "store"
    server.start(HANGS_S)
    expected = {m: [ask(server, m, p)[1]["choices"][0]["text"] for p in PROMPTS] for m in "ab"}
    wait_for(lambda: len(images(store)) == 2)
    server.stop()
    whole = physical_bytes(store / "images")

    rng = random.Random(SEED)
    print(f"seed {SEED}, {CRASHES} crashes")
    answers = unfinished = 0
    for number in range(CRASHES):
        context = f"crash {number} of seed {SEED}"
        before = images(store)
        if rng.random() < 0.7:  # so that one of them is being imported
            doomed = rng.choice(sorted(before))
            shutil.rmtree(store / "images" / doomed)
            del before[doomed]
        delay = rng.uniform(0, 1.2)
        early = rng.random() < 0.2  # killed while it starts
        if early:
            delay *= 0.1
            killer = threading.Timer(delay, lambda: server.process and server.process.kill())
            killer.start()
            try:
                server.start(HANGS_S)
            except server_process.ServerError:
                pass
            killer.join()
            load = Load(server, expected)
        else:
            server.start(HANGS_S)
            load = Load(server, expected)
            time.sleep(delay)
        server.stop(kill=True)
        assert load.join() == [], context
        answers += load.answers

        after = images(store)
        unfinished += len(leftovers(store)) > 0
        lost = {name for name in before if after.get(name) != before[name]}
        assert not lost, f"{context}: finished images are gone: {lost}"

        server.start(HANGS_S)
        for model in "ab":
            for prompt in (0, rng.randrange(len(PROMPTS))):
                status, answer = ask(server, model, PROMPTS[prompt])
                assert status == 200, (context, answer)
                assert answer["choices"][0]["text"] == expected[model][prompt], context
        assert server.metric("terrace_checksum_failures_total") == 0, context
        wait_for(lambda: len(images(store)) == 2)
        server.stop()
        assert leftovers(store) == [], context
        assert physical_bytes(store / "images") == whole, context
        assert physical_bytes(store / "kv") <= KV_CAP, context
    print(f"{answers} answers before the crashes, {unfinished} crashes left half-written files")
    assert answers > 0
