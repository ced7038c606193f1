"""Hard cases A36 to A41 and A44 over real HTTP: models that share too little memory, disks that
fill up, stores that err. Generated models of about 20 MB; TERRACE_LONG=1 runs the full numbers.
"""

import os
import pathlib
import random
import shutil
import threading
import time

import pytest
from conftest import make_model
from object_server import ObjectServer
from test_crash import ask, images, leftovers, physical_bytes, wait_for

LONG = os.environ.get("TERRACE_LONG") == "1"
MIB = 1 << 20
PROMPT = [(7 * i) % 250 for i in range(24)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {name: make_model("small", seed, folder) for seed, name in enumerate(("m1", "m2"), 1)}


def for_one(pair):
    """A budget for one of the models with KV and workspace, not for both."""
    return f"{max(p.stat().st_size for p in pair.values()) // MIB + 14}MiB"


def loads(server, name):
    """Segments of the model brought in since the server started."""
    return server.metric("terrace_segment_loads_total", model=name)


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
    assert switches <= 40, "a load that served nobody"

    # Ten wait for m1 and one for m2, which must not wait for ever.
    times = {}

    def one(name, number):
        start = time.monotonic()
        body = {"model": name, "prompt": PROMPT, "max_tokens": 40, "temperature": 0}
        assert server.post("/v1/completions", body)[0] == 200
        times[name, number] = time.monotonic() - start

    threads = [threading.Thread(target=one, args=("m1", i)) for i in range(10)]
    threads.append(threading.Thread(target=one, args=("m2", 0)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(times) == 11


# ---- A37: the idle limit meets a new request ----


def test_a37_requests_around_the_idle_limit_are_answered(servers, pair):
    limit_s = 1.0 if LONG else 0.1
    rounds = 500 if LONG else 40
    server = servers.start(
        pair,
        memory={
            "device_budget": for_one(pair),
            "hot_keep_time": f"{int(limit_s * 1000)}ms",
            "swap_threshold": "0.3",  # so that what is past its limit goes
        },
    )
    first = {name: text_of(ask(server, name, PROMPT)[1]) for name in pair}
    rng = random.Random(37)
    for number in range(rounds):
        time.sleep(max(0, limit_s + rng.uniform(-0.05, 0.05)))
        name = ("m1", "m2")[number % 3 == 0]
        status, answer = ask(server, name, PROMPT)
        assert status == 200 and text_of(answer) == first[name], (number, answer)


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
    sizes = sum(path.stat().st_size for path in pair.values())
    for budget, fits in ((sizes * 1.1 + 40 * MIB, True), (sizes * 0.9, False)):
        server = servers.start(
            pair, memory={"device_budget": f"{int(budget) // MIB}MiB", "hot_keep_time": "0s"}
        )
        for _ in range(2):
            for name in pair:
                assert ask(server, name, PROMPT)[0] == 200
                used = server.metric("terrace_memory_bytes", tier="device")
                assert used <= server.metric("terrace_budget_bytes", tier="device")
        evictions = server.metric("terrace_segment_evictions_total")
        assert (evictions == 0) == fits, evictions
        server.stop()


# ---- A40: memory after many cycles ----


def test_a40_memory_stays_flat_over_loads_and_requests(servers, pair):
    cycles, requests = (60, 2000) if LONG else (25, 200)
    server = servers.start(pair, memory={"device_budget": for_one(pair), "hot_keep_time": "0s"})

    def anonymous():
        fields = dict(
            line.split(":", 1)
            for line in pathlib.Path(f"/proc/{server.pid}/status").read_text().splitlines()
            if ":" in line
        )
        return sum(int(fields[key].split()[0]) * 1024 for key in ("RssAnon", "VmSwap"))

    samples = []
    for _ in range(cycles):
        for name in pair:
            assert ask(server, name, PROMPT)[0] == 200
        samples.append(anonymous())
    for _ in range(requests):
        assert ask(server, "m1", PROMPT)[0] == 200
    samples.append(anonymous())
    tail = samples[10:]
    n = len(tail)
    mean_x, mean_y = (n - 1) / 2, sum(tail) / n
    slope = sum((x - mean_x) * (y - mean_y) for x, y in enumerate(tail)) / sum(
        (x - mean_x) ** 2 for x in range(n)
    )
    print(f"{slope / 1024:.0f} KiB a cycle, {samples[0] / MIB:.0f} to {samples[-1] / MIB:.0f} MiB")
    # A leak of the kind reported was 200 MB a cycle; a tokenizer of these models is about 2 MB.
    assert slope < 0.25 * MIB
    assert max(tail) - min(tail) < 16 * MIB


# ---- A41: limits after a restart ----


@pytest.mark.parametrize("kill", [False, True])
def test_a41_kv_on_disk_is_found_again_and_never_passes_its_cap(servers, pair, kill):
    cap = 8 * MIB
    server = servers.start(
        {"m1": pair["m1"]}, memory={"device_budget": for_one(pair)}, kv={"disk_size": "8MiB"}
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
    prompts = [[(3 * i + 11 * p) % 250 for i in range(160)] for p in range(12)]
    for prompt in prompts * 3:  # what comes again is written
        assert ask(server, "m1", prompt)[0] == 200
    wait_for(lambda: physical_bytes(folder) > cap // 2)
    server.stop(kill=kill)
    server.start()
    cached = 0
    for prompt in prompts:
        _, answer = ask(server, "m1", prompt)
        cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    for p in range(40):  # new ones, which need room
        prompt = [(5 * i + 13 * p + 1) % 250 for i in range(160)]
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
    faults = {0: [503, 500], 8 * MIB: ["reset", "short"]}
    bucket.fault = lambda path, first: faults.get(first, []) and faults[first].pop(0)
    server = from_bucket(
        servers, bucket, {"source": "s3://models/m1.gguf"}, memory={"device_budget": "64MiB"}
    )
    expected = servers.start({"m1": pair["m1"]}, memory={"device_budget": "64MiB"})
    want = text_of(ask(expected, "m1", PROMPT)[1])
    status, answer = ask(server, "far", PROMPT)
    assert status == 200 and text_of(answer) == want, answer
    assert faults == {0: [], 8 * MIB: []}
    # Written through: the next start needs no byte of it from the store, nor the store itself.
    wait_for(lambda: list((server.folder / "store" / "objects").glob("*.state")))
    server.stop()
    bucket.gets.clear()
    bucket.fault = lambda path, first: 503
    server.start()
    status, answer = ask(server, "far", PROMPT)
    assert status == 200 and text_of(answer) == want, answer


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

