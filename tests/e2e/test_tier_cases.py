"""Hard cases A36 to A41 and A44 over real HTTP: models that share too little memory, disks that
fill up, stores that err. Generated models of about 20 MB; TERRACE_LONG=1 runs the full numbers.
"""

import collections
import os
import pathlib
import random
import re
import shutil
import threading
import time

import pytest
from conftest import PROMPT, TINY, make_model
from object_server import ObjectServer
from test_crash import ask, images, leftovers, physical_bytes, wait_for

LONG = os.environ.get("TERRACE_LONG") == "1"
MIB = 1 << 20


def for_one(pair):
    """A budget for one of the models with KV and workspace, not for both."""
    return f"{max(p.stat().st_size for p in pair.values()) // MIB + 14}MiB"


def loads(server, name):
    """Segments of the model brought in since the server started."""
    return server.metric("terrace_segment_loads_total", model=name)


def booked(server, **labels):
    return server.metric("terrace_memory_bytes", tier="device", **labels)


def unload(server, name):
    assert server.post(f"/v2/repository/models/{name}/unload", {})[0] == 200


def anonymous(server):
    """Bytes of anonymous memory of the process, in memory or swapped out."""
    lines = pathlib.Path(f"/proc/{server.pid}/status").read_text().splitlines()
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return sum(int(fields[key].split()[0]) * 1024 for key in ("RssAnon", "VmSwap"))


def text_of(answer):
    return answer["choices"][0]["text"]


# ---- A36: two clients, two models, room for one ----


def test_a36_each_load_serves_and_nobody_starves(servers, pair):
    server = servers.start(pair, memory={"device_budget": for_one(pair), "hot_keep_time": "0s"})
    segments = {}
    for name in pair:
        assert ask(server, name, PROMPT)[0] == 200
        segments[name] = loads(server, name)
    results = {name: [] for name in pair}

    def client(name):
        for _ in range(20):
            results[name].append(ask(server, name, PROMPT)[0])

    before = {name: loads(server, name) for name in pair}
    threads = [threading.Thread(target=client, args=(name,)) for name in pair]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(status == 200 for statuses in results.values() for status in statuses)
    switches = sum((loads(server, name) - before[name]) / segments[name] for name in pair)
    print(f"{switches:.1f} loads of whole models for 40 requests")
    assert switches <= 20, "loads must be far fewer than requests"
    server.stop()

    # Ten queue for m1, one at a time, then one for m2: after max_wait it has the next turn, so that
    # it ends before the last of m1, however fast or slow this machine is.
    server.config["scheduler"] = {"max_wait": "10ms", "max_batch": 1}
    server.start()
    times = {}
    order = []

    def one(name, number):
        start = time.monotonic()
        body = {"model": name, "prompt": PROMPT, "max_tokens": 60, "temperature": 0}
        assert server.post("/v1/completions", body)[0] == 200
        order.append(name)
        times[name, number] = time.monotonic() - start

    threads = [threading.Thread(target=one, args=("m1", i)) for i in range(10)]
    for thread in threads:
        thread.start()
    wait_for(lambda: server.metric("terrace_queue_length", model="m1") >= 5)
    threads.append(threading.Thread(target=one, args=("m2", 0)))
    threads[-1].start()
    for thread in threads:
        thread.join()
    assert len(times) == 11
    print(f"m2 was number {order.index('m2') + 1} of 11, after {times['m2', 0]:.2f} s")
    assert order.index("m2") < 10, "starved until all of m1 were done"
    assert times["m2", 0] < 20


# ---- A37: the idle limit meets a new request ----


def test_a37_requests_around_the_idle_limit_are_answered(servers, pair, tmp_path):
    # All 500 requests; without TERRACE_LONG limit and offsets are a 50th of the case's.
    scale = 1.0 if LONG else 0.02
    limit_s = 1.0 * scale
    models = pair
    if not LONG:
        models = {name: make_model("tiny", i, tmp_path) for i, name in enumerate(pair, 1)}
    server = servers.start(
        models,
        memory={
            "device_budget": for_one(models),
            "hot_keep_time": f"{int(limit_s * 1000)}ms",
            "swap_threshold": "0.3" if LONG else "0.05",  # so that what is past its limit goes
        },
    )
    first = {name: text_of(ask(server, name, PROMPT)[1]) for name in pair}
    offsets = [i % 101 - 50 for i in range(500)]  # milliseconds, each about five times
    random.Random(37).shuffle(offsets)
    for number, offset in enumerate(offsets):
        time.sleep(limit_s + offset / 1000 * scale)
        name = ("m1", "m2")[number % 3 == 0]
        status, answer = ask(server, name, PROMPT)
        assert status == 200 and text_of(answer) == first[name], (number, answer)
    assert server.metric("terrace_segment_evictions_total") > 0, "nothing was ever unloaded"


def test_a37_what_a_request_holds_is_not_unloaded_though_past_its_limit(servers, pair):
    server = servers.start(
        pair, memory={"device_budget": "128MiB", "hot_keep_time": "1s", "swap_threshold": "0.1"}
    )
    body = {"model": "m1", "prompt": PROMPT, "max_tokens": 2500, "temperature": 0}
    body["ignore_eos"] = True
    held = threading.Thread(target=server.stream, args=("/v1/completions", body))
    held.start()
    wait_for(lambda: server.metric("terrace_running_requests", model="m1") == 1)
    time.sleep(1.2)  # the request began longer ago than the limit
    assert ask(server, "m2", PROMPT)[0] == 200  # its load looks for what is past its limit
    lost = server.metric("terrace_segment_evictions_total", model="m1")
    assert held.is_alive(), "too short a stream to show anything"
    assert lost == 0
    held.join()
    # Nobody holds it now: past the limit the next load of another makes it go.
    unload(server, "m2")
    assert server.post("/v2/repository/models/m2/load", {})[0] == 200
    time.sleep(1.2)
    assert ask(server, "m2", PROMPT)[0] == 200
    assert server.metric("terrace_segment_evictions_total", model="m1") > 0


# ---- A38: a failed load does not stick ----


def test_a38_a_model_that_cannot_be_read_is_served_once_it_can(servers, pair, tmp_path):
    path = tmp_path / "late.gguf"
    server = servers.start(
        {"late": path, "m1": pair["m1"]}, memory={"device_budget": for_one(pair)}
    )
    for _ in range(3):
        start = time.monotonic()
        status, answer = ask(server, "late", PROMPT)
        assert status == 503 and "late" in answer["error"]["message"], answer
        assert time.monotonic() - start < 2
        assert ask(server, "m1", PROMPT)[0] == 200, "others are not held up"
    booked = server.metric("terrace_memory_bytes", tier="device", kind="weights")
    assert booked <= pair["m1"].stat().st_size * 1.5, "nothing stays booked for it"
    shutil.copy(pair["m2"], path)
    time.sleep(0.2)
    assert ask(server, "late", PROMPT)[0] == 200


def test_a38_a_source_that_is_gone_does_not_matter_once_there_is_an_image(servers, pair, tmp_path):
    path = tmp_path / "gone.gguf"
    shutil.copy(pair["m2"], path)
    server = servers.start(
        {"gone": path, "m1": pair["m1"]},
        memory={"device_budget": for_one(pair), "hot_keep_time": "0s"},
    )
    first = text_of(ask(server, "gone", PROMPT)[1])
    wait_for(lambda: len(images(pathlib.Path(server.folder) / "store")) == 2)
    path.unlink()
    assert ask(server, "m1", PROMPT)[0] == 200  # pushes it out
    status, answer = ask(server, "gone", PROMPT)
    assert status == 200 and text_of(answer) == first


# ---- A39: no eviction where there is room ----


def test_a39_models_stay_where_there_is_room_and_swap_where_there_is_not(servers, pair):
    server = servers.start(pair, memory={"device_budget": "256MiB"})
    for name in pair:
        assert ask(server, name, PROMPT)[0] == 200
    need = booked(server)  # of both, with KV and workspace
    weights = booked(server, kind="weights")
    whole = loads(server, "m1") + loads(server, "m2")
    server.stop()
    for budget, fits in ((int(need * 1.1), True), (int(weights) - 1, False)):
        server = servers.start(pair, memory={"device_budget": f"{budget}B", "hot_keep_time": "0s"})
        for _ in range(2):
            for name in pair:
                assert ask(server, name, PROMPT)[0] == 200
                assert booked(server) <= server.metric("terrace_budget_bytes", tier="device")
        evictions = server.metric("terrace_segment_evictions_total")
        assert (evictions == 0) == fits, evictions
        assert (loads(server, "m1") + loads(server, "m2") == whole) == fits
        server.stop()


def test_a39_what_is_booked_is_what_is_used(servers, pair):
    server = servers.start(pair, memory={"device_budget": "256MiB"})
    for name in pair:
        assert ask(server, name, PROMPT)[0] == 200
    for name in pair:  # what goes away with a model's weights
        used_before, booked_before = anonymous(server), booked(server)
        unload(server, name)
        wait_for(lambda: booked(server, kind="weights") < booked_before - 10 * MIB)
        wait_for(lambda: anonymous(server) < used_before - 10 * MIB)
        used, ledger = used_before - anonymous(server), booked_before - booked(server)
        print(f"{name}: {ledger / MIB:.1f} MiB booked, {used / MIB:.1f} MiB used")
        # Beside the 10%: what the tokenizer of a model of 20 MB, not booked, may weigh.
        assert abs(used - ledger) < 0.1 * ledger + MIB


def test_a39_what_cannot_even_be_streamed_is_refused_with_need_and_budget(servers, pair):
    # The case refuses a model larger than the whole budget. Here it is streamed (see the tests of
    # models three times the budget, below); refused is what has one segment larger than the budget.
    server = servers.start(pair | {"near": TINY["tiny-llama"]}, memory={"device_budget": "3MiB"})
    status, answer = ask(server, "m1", PROMPT)
    message = answer["error"]["message"]
    assert status == 503 and re.search(r"needs .*\(\d+ bytes\)", message), message
    assert f"({3 * MIB} bytes)" in message
    assert booked(server, kind="weights") == 0, "nothing stays booked for it"
    assert ask(server, "near", [5, 6, 7])[0] == 200, "others are served"


# ---- A40: memory after many cycles ----


def test_a40_memory_stays_flat_over_loads_and_requests(servers, pair, tmp_path):
    # Tiny models, so that the full numbers take seconds: what leaked was not weights but what is
    # beside them. TERRACE_LONG takes those of 20 MB.
    models = pair
    if not LONG:
        models = {name: make_model("tiny", i, tmp_path) for i, name in enumerate(pair, 1)}
    server = servers.start(models, memory={"device_budget": "64MiB", "hot_keep_time": "0s"})
    start = anonymous(server)
    samples = []
    for _ in range(60):
        for name in models:
            assert server.post(f"/v2/repository/models/{name}/load", {})[0] == 200
            assert ask(server, name, PROMPT)[0] == 200
            unload(server, name)
        samples.append(anonymous(server))
    tail = samples[10:]
    n = len(tail)
    mean_x, mean_y = (n - 1) / 2, sum(tail) / n
    slope = sum((x - mean_x) * (y - mean_y) for x, y in enumerate(tail)) / sum(
        (x - mean_x) ** 2 for x in range(n)
    )
    print(f"{slope / 1024:.0f} KiB a cycle, {samples[0] / MIB:.0f} to {samples[-1] / MIB:.0f} MiB")
    # A leak of the kind reported was 200 MB a cycle; a tokenizer of the larger models is 2 MB.
    assert slope < 0.25 * MIB
    assert max(tail) - min(tail) < 16 * MIB
    assert server.post("/v2/repository/models/m1/load", {})[0] == 200
    before = None
    for number in range(2000):
        assert ask(server, "m1", PROMPT)[0] == 200
        if number == 100:
            before = anonymous(server)
    after = anonymous(server)
    unload(server, "m1")
    wait_for(lambda: server.metric("terrace_memory_bytes", tier="device", kind="weights") == 0)
    end = anonymous(server)
    shown = [f"{bytes_ / MIB:.1f}" for bytes_ in (start, before, after, end)]
    print(f"MiB at start, after 100 and 2000 requests, all unloaded: {shown}")
    assert after - before < 8 * MIB
    # Workspace, code that ran for the first time and the allocator's own caches stay.
    assert end < start + 24 * MIB
    maps = pathlib.Path(f"/proc/{server.pid}/maps").read_text()
    assert ".gguf" not in maps and "blocks.bin" not in maps, "file maps are gone"


# ---- A41: limits after a restart ----


@pytest.mark.parametrize("kill", [False, True])
def test_a41_kv_on_disk_is_found_again_and_never_passes_its_cap(servers, pair, kill):
    cap = 100 * MIB  # 8 KiB of KV a token
    server = servers.start(
        {"m1": pair["m1"]}, memory={"device_budget": for_one(pair)}, kv={"disk_size": "100MiB"}
    )
    folder = pathlib.Path(server.folder) / "store" / "kv"
    over, stop = [], threading.Event()

    def watch():
        while not stop.is_set():
            if physical_bytes(folder) > cap:
                over.append(physical_bytes(folder))
            time.sleep(0.01)

    watcher = threading.Thread(target=watch)
    watcher.start()
    prompts = [[(3 * i + 11 * p) % 250 for i in range(640)] for p in range(16)]
    for prompt in prompts * 3:  # what comes again is written
        assert ask(server, "m1", prompt)[0] == 200
    wait_for(lambda: physical_bytes(folder) > 75 * MIB)
    server.stop(kill=kill)
    server.start()
    cached = 0
    for prompt in prompts:
        _, answer = ask(server, "m1", prompt)
        cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    for p in range(10):  # new ones of 50 MiB, which need room
        prompt = [(5 * i + 13 * p + 1) % 250 for i in range(640)]
        for _ in range(2):
            assert ask(server, "m1", prompt)[0] == 200
    stop.set()
    watcher.join()
    assert cached > 0, "nothing was found again"
    assert not over, f"{max(over)} bytes"


# ---- A44: object stores that err, and models that are served from them ----


@pytest.fixture
def bucket():
    server = ObjectServer()
    yield server
    server.stop()


def from_bucket(servers, bucket, model, near=None, **config):
    """`near`: a model on this machine beside it; a server of which no model opens is not ready."""
    storage = {"object": {"endpoint": bucket.url}} | config.pop("storage", {})
    models = {"far": model} | ({"near": near} if near else {})
    server = servers.start(models, wait=False, storage=storage, **config)
    server.config["storage"].setdefault("disk", {})["path"] = str(server.folder / "store")
    return server.start()


def test_a44_a_model_is_served_from_a_store_that_errs(servers, pair, bucket):
    bucket.objects["/models/m1.gguf"] = pair["m1"].read_bytes()
    faults = {0: [503, 503], 8 * MIB: ["reset", "short"], 16 * MIB: ["stall"]}
    bucket.fault = lambda path, first: faults.get(first, []) and faults[first].pop(0)
    server = from_bucket(
        servers, bucket, {"source": "s3://models/m1.gguf"}, memory={"device_budget": "64MiB"}
    )
    expected = servers.start({"m1": pair["m1"]}, memory={"device_budget": "64MiB"})
    want = text_of(ask(expected, "m1", PROMPT)[1])
    status, answer = ask(server, "far", PROMPT)
    assert status == 200 and text_of(answer) == want, answer
    assert faults == {0: [], 8 * MIB: [], 16 * MIB: []}
    # Only what failed was asked for again: each once more than it failed.
    # (The first bytes are read for the header too.)
    asked = collections.Counter(first for _, first in bucket.gets)
    print(f"asked by first byte: {dict(asked)}")
    assert asked.pop(8 * MIB) == 3 and asked.pop(16 * MIB) == 2, asked
    assert asked.pop(0) >= 3 and set(asked.values()) <= {1}, asked
    # Written through: the next start needs no byte of it from the store, nor the store itself.
    wait_for(lambda: list((server.folder / "store" / "objects").glob("*.state")))
    server.stop()
    bucket.gets.clear()
    bucket.fault = lambda path, first: 503
    server.start()
    status, answer = ask(server, "far", PROMPT)
    assert status == 200 and text_of(answer) == want, answer


def test_a38_a_slow_load_and_a_source_removed_half_way_do_not_stick(servers, pair, bucket):
    bucket.objects["/models/m1.gguf"] = pair["m1"].read_bytes()
    # A source that is removed half way, then slow past what its client waits, then quick.
    bucket.fault = lambda path, first: 404 if first is not None and first >= 8 * MIB else None
    server = from_bucket(
        servers,
        bucket,
        {"source": "s3://models/m1.gguf"},
        near=pair["m2"],
        memory={"device_budget": "64MiB"},
    )
    status, answer = ask(server, "far", PROMPT)
    assert status == 503 and "s3://models/m1.gguf" in answer["error"]["message"], answer
    assert ask(server, "near", PROMPT)[0] == 200, "others are not held up"
    bucket.fault = lambda path, first: "slow" if first is not None and first >= 8 * MIB else None

    def times_out():
        try:
            status, answer = ask(server, "far", PROMPT, timeout_s=1)
        except TimeoutError:
            return True
        assert status != 200, answer
        return False  # the failure before is still told for a moment

    wait_for(times_out)
    assert ask(server, "near", PROMPT)[0] == 200, "others are not held up"
    bucket.fault = lambda path, first: None
    bucket.gate.set()
    status, answer = ask(server, "far", PROMPT)
    assert status == 200, answer


@pytest.mark.parametrize("status", [403, 404])
def test_a44_a_refusal_for_good_is_told_at_once_and_tried_again_later(
    servers, pair, bucket, status
):
    bucket.objects["/models/m1.gguf"] = pair["m1"].read_bytes()
    bucket.fault = lambda path, first: status
    server = from_bucket(
        servers,
        bucket,
        {"source": "s3://models/m1.gguf"},
        near=pair["m2"],
        memory={"device_budget": "64MiB"},
    )
    start = time.monotonic()
    code, answer = ask(server, "far", PROMPT)
    assert code == 503 and "s3://models/m1.gguf" in answer["error"]["message"], answer
    assert time.monotonic() - start < 3
    bucket.fault = lambda path, first: None
    time.sleep(0.2)
    assert ask(server, "far", PROMPT)[0] == 200


def test_a44_wrong_bytes_are_refused_where_the_sum_is_known(servers, pair, bucket):
    import hashlib

    body = pair["m1"].read_bytes()
    bucket.objects["/m1.gguf"] = body
    wrong = [True]
    bucket.fault = lambda path, first: "wrong" if first == 8 * MIB and wrong[0] else None
    source = {"source": f"{bucket.url}/m1.gguf", "sha256": hashlib.sha256(body).hexdigest()}
    server = from_bucket(
        servers, bucket, source, near=pair["m2"], memory={"device_budget": "64MiB"}
    )
    code, answer = ask(server, "far", PROMPT)
    assert code == 503 and "SHA-256" in answer["error"]["message"], answer
    wrong[0] = False
    time.sleep(0.2)
    assert ask(server, "far", PROMPT)[0] == 200


# ---- A disk that fills up ----


def test_a_small_disk_bounds_everything_and_serving_goes_on(servers, tmp_path):
    models = {f"m{i}": make_model("small", i, tmp_path) for i in range(1, 5)}
    size = models["m1"].stat().st_size
    cap = int(size * 3.5)
    server = servers.start(
        models,
        wait=False,
        memory={"device_budget": f"{size // MIB + 14}MiB", "hot_keep_time": "0s"},
    )
    server.config["storage"] = {
        "disk": {"path": str(server.folder / "store"), "size": f"{cap // 1024}KiB"}
    }
    server.start()
    store = server.folder / "store"
    over, stop = [], threading.Event()

    def watch():
        while not stop.is_set():
            used = physical_bytes(store)
            if used > cap:
                over.append(used)
            time.sleep(0.01)

    watcher = threading.Thread(target=watch)
    watcher.start()
    first = {}
    for _ in range(3):
        for name in models:
            status, answer = ask(server, name, PROMPT)
            assert status == 200, answer
            assert first.setdefault(name, text_of(answer)) == text_of(answer)
    stop.set()
    watcher.join()
    assert not over, f"{max(over)} bytes on a disk of {cap}"
    assert "storage.disk.size" in server.log(), "an operator is told"
    assert 1 <= len(images(store)) < len(models)
    assert leftovers(store) == []


def test_damage_on_disk_is_mended_and_never_served(servers, pair):
    server = servers.start(pair, memory={"device_budget": for_one(pair), "hot_keep_time": "0s"})
    store = pathlib.Path(server.folder) / "store"
    first = {name: text_of(ask(server, name, PROMPT)[1]) for name in pair}
    wait_for(lambda: len(images(store)) == 2)
    for folder in (store / "images").iterdir():
        with open(folder / "blocks.bin", "r+b") as blocks:
            for offset in range(100_000, folder.joinpath("blocks.bin").stat().st_size, 3 * MIB):
                blocks.seek(offset)
                byte = blocks.read(1)
                blocks.seek(offset)
                blocks.write(bytes([byte[0] ^ 16]))
    for _ in range(2):
        for name in pair:
            status, answer = ask(server, name, PROMPT)
            assert status == 200 and text_of(answer) == first[name], answer
    assert server.metric("terrace_checksum_failures_total") > 0
    assert "were made anew from the source" in server.log()
    failures = server.metric("terrace_checksum_failures_total")
    for name in pair:
        assert text_of(ask(server, name, PROMPT)[1]) == first[name]
    assert server.metric("terrace_checksum_failures_total") == failures, "it was mended"


# ---- Models larger than the budget ----


@pytest.mark.parametrize("shape", ["small", "small-moe"])
def test_a_model_three_times_the_budget_answers_the_same(servers, tmp_path, shape):
    path = make_model(shape, 3, tmp_path)
    whole = servers.start({"m": path}, memory={"device_budget": "128MiB"})
    expected = [ask(whole, "m", [p + i for i in range(20)])[1] for p in range(4)]
    whole.stop()
    # Beside a third of the weights: workspace and KV of these small models.
    budget = path.stat().st_size // 3 // MIB + 9
    server = servers.start({"m": path}, memory={"device_budget": f"{budget}MiB"})
    for p, want in enumerate(expected):
        status, answer = ask(server, "m", [p + i for i in range(20)])
        assert status == 200 and text_of(answer) == text_of(want), answer
        assert "weight_bytes_moved" not in want["usage"] or p < 3
        assert answer["usage"]["weight_bytes_moved_per_token"] > 0
    print(f"{shape}: {answer['usage']['weight_bytes_moved_per_token'] / MIB:.1f} MiB a token")
    assert server.metric("terrace_memory_bytes", tier="device") <= budget * MIB

