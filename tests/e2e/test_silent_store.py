"""A store that goes silent while a model comes from it: nothing ends, everybody else is served, and
who waits is told why, at the latest when their own limit is over.
"""

import json
import threading
import time

import pytest
from conftest import PROMPT
from object_server import ObjectServer
from server_process import free_port
from test_crash import ask, wait_for

MIB = 1 << 20


@pytest.fixture
def bucket():
    server = ObjectServer()
    yield server
    server.stop()


def start(servers, bucket, pair, **config):
    """A server of m1 in the bucket as "far" and m2 on this machine as "near"."""
    bucket.objects["/models/m1.gguf"] = pair["m1"].read_bytes()
    server = servers.start(
        {"far": {"source": "s3://models/m1.gguf"}, "near": pair["m2"]},
        wait=False,
        server={"admin_port": free_port()},
        **config,
    )
    server.config["storage"] = {
        "object": {"endpoint": bucket.url},
        "disk": {"path": str(server.folder / "store")},
    }
    return server.start()


def limited(server, seconds):
    """(status, answer, seconds it took) of a request to "far" that may wait so long."""
    body = {"model": "far", "prompt": PROMPT, "max_tokens": 4, "temperature": 0}
    begin = time.monotonic()
    status, answer = server.post(
        "/v1/completions", body, headers={"X-Terrace-Swap": f"wait:{seconds}"}
    )
    return status, answer, time.monotonic() - begin


def awaited(server):
    _, text = server.get("/admin/state", port=server.config["server"]["admin_port"])
    models = {model["name"]: model for model in json.loads(text)["models"]}
    return models["far"].get("awaits")


@pytest.mark.parametrize("budget", ["64MiB", "36MiB"], ids=["both fit", "one fits"])
def test_a_silent_store_ends_nothing_and_is_told(servers, bucket, pair, budget):
    # Waiting for 20 times the watchdog's time is a hang: 2 s.
    server = start(
        servers, bucket, pair, memory={"device_budget": budget}, watchdog={"timeout": "100ms"}
    )
    pid = server.pid
    want = ask(server, "near", PROMPT)[1]["choices"][0]["text"]
    bucket.fault = lambda path, first: "slow" if first is not None and first >= 8 * MIB else None
    begin = time.monotonic()
    late = {}
    patient = threading.Thread(target=lambda: late.update(answer=ask(server, "far", PROMPT, 120)))
    patient.start()
    status, answer, took = limited(server, 3)
    assert status == 503 and "s3://models/m1.gguf" in answer["error"]["message"], answer
    assert "3.0 s" in answer["error"]["message"] and took >= 3, answer
    assert awaited(server)["store"] == "s3://models/m1.gguf"
    while time.monotonic() < begin + 8:
        status, answer = ask(server, "near", PROMPT)
        assert status == 200 and answer["choices"][0]["text"] == want, answer
    assert server.process.poll() is None and server.pid == pid
    assert "answer" not in late
    bucket.fault = lambda path, first: None
    bucket.gate.set()
    patient.join()
    assert late["answer"][0] == 200, late
    wait_for(lambda: awaited(server) is None)


def test_a_wait_that_is_allowed_ends_with_the_answer(servers, bucket, pair):
    server = start(servers, bucket, pair, memory={"device_budget": "64MiB"})
    bucket.fault = lambda path, first: "slow" if first == 16 * MIB else None
    threading.Timer(3, bucket.gate.set).start()
    status, answer, _ = limited(server, 60)
    assert status == 200, answer


def test_a_model_whose_object_is_gone_is_no_model_that_is_not_found(servers, bucket, pair):
    server = start(servers, bucket, pair, memory={"device_budget": "64MiB"})
    bucket.fault = lambda path, first: 404 if first is not None and first >= 8 * MIB else None
    status, answer = ask(server, "far", PROMPT)
    assert status == 503, answer
    assert "s3://models/m1.gguf" in answer["error"]["message"], answer
    assert answer["error"]["code"] != "model_not_found", answer
    assert ask(server, "near", PROMPT)[0] == 200
