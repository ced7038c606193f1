"""Models divided among devices: of one server, and of processes that mpirun starts."""

import json
import os
import shutil
import subprocess

import pytest

import server_process
from conftest import GOLDEN, TINY

PROMPT = "The quick brown fox jumps over the lazy dog and runs away from the"
# Float32 sums in another order are all that differs then, far below the models' margins.
PLAIN = {"variant": "ref", "threads": 2}


def answer(server, model, prompt=PROMPT):
    status, body = server.post(
        "/v1/completions",
        {"model": model, "prompt": prompt, "max_tokens": 24, "temperature": 0, "seed": 1},
    )
    assert status == 200, body
    return body["choices"][0]["text"]


@pytest.mark.parametrize("kind", ["cpu", "sim"])
def test_divided_models_answer_as_whole_ones(servers, kind):
    device = PLAIN | {"kind": kind}
    experts = GOLDEN / "arch" / "qwen3moe.gguf"
    server = servers.start(
        {
            "whole": TINY["tiny-llama"],
            "divided": {"source": str(TINY["tiny-llama"]), "tensor_parallel": 2},
            "whole-experts": experts,
            "experts": {"source": str(experts), "expert_parallel": 2},
            "both": {"source": str(experts), "tensor_parallel": 2, "expert_parallel": 2},
        },
        memory={"device_budget": "64MiB"},
        device=device,
    )
    for _ in range(2):  # the second time with what the KV cache has
        assert answer(server, "divided") == answer(server, "whole")
        assert answer(server, "experts") == answer(server, "whole-experts")
        assert answer(server, "both") == answer(server, "whole-experts")
    assert answer(server, "divided", PROMPT + " wolf") == answer(server, "whole", PROMPT + " wolf")
    for link in ("to other devices", "from other devices"):
        before = server.metric("terrace_link_bytes_total", link=link)
        assert before > 0
        answer(server, "whole", PROMPT + " bear")
        assert server.metric("terrace_link_bytes_total", link=link) == before
        answer(server, "divided", PROMPT + " bear")
        assert server.metric("terrace_link_bytes_total", link=link) > before
    assert server.stop() == 0


def test_what_cannot_be_divided_is_said(servers):
    server = servers.start(
        {
            "whole": TINY["tiny-llama"],
            "three": {"source": str(TINY["tiny-llama"]), "tensor_parallel": 3},
        },
        memory={"device_budget": "64MiB"},
        device=PLAIN,
    )
    status, body = server.post("/v1/completions", {"model": "three", "prompt": "a"})
    assert status >= 400
    assert "4 attention heads cannot be divided among 3 devices" in json.dumps(body) + server.log()
    assert answer(server, "whole")


def verify(command, *arguments):
    terrace = str(server_process.default_binary())
    done = subprocess.run(
        [*command, terrace, "verify", "parallel", *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def mpirun(processes):
    if shutil.which("mpirun") is None:
        pytest.skip("mpirun is not installed (./dev setup test)")
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    return ["mpirun", *root, "--oversubscribe", "-n", str(processes)]


@pytest.mark.parametrize(
    ("model", "devices", "arguments"),
    [
        ("llama", 2, ["--tensor", "2"]),
        ("llama", 4, ["--tensor", "4"]),
        ("gemma3", 4, ["--tensor", "4"]),
        ("qwen3moe", 2, ["--expert", "2"]),
        ("deepseek2", 2, ["--tensor", "2", "--expert", "2"]),
    ],
)
def test_processes_compute_what_one_does(model, devices, arguments):
    path = str(GOLDEN / "arch" / f"{model}.gguf")
    processes = verify(mpirun(devices), path, *arguments)
    assert processes["processes"] == processes["devices"] == devices
    assert processes["sent_bytes"] == processes["formula_bytes"] > 0
    assert processes["worst_error"] <= processes["tolerance"]
    # Sums are formed in order of rank whatever carries them.
    threads = verify([], path, *arguments)
    assert threads["processes"] == 1
    assert threads["worst_error"] == processes["worst_error"]
    assert threads["sent_bytes"] == processes["sent_bytes"]


def members(processes, what):
    tool = server_process.default_binary().parent / "terrace_mpi_member"
    told = {}
    command = [*mpirun(processes), str(tool), what]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        while len(told) < processes and (line := job.stdout.readline()):
            rank, sent, code, text = line.split(" ", 3)
            told[int(rank)] = (int(sent), code, text)
        job.terminate()
    return told


@pytest.mark.parametrize("processes", [2, 3, 4])
def test_processes_sum_gather_and_broadcast(processes):
    told = members(processes, "exchange")
    assert {code for _, code, _ in told.values()} == {"OK"}, told
    others = processes - 1
    sent = sum(sent for sent, _, _ in told.values())
    assert sent == 4 * others * (2 * 1001 + processes * processes)


def test_processes_are_told_when_one_gives_up():
    told = members(3, "give-up")
    for rank in (0, 1):
        assert told[rank][1] == "UNAVAILABLE", told
        assert "member 2 of the group gave up: no room in layer 3" in told[rank][2]


def test_processes_do_not_wait_forever():
    told = members(2, "silent")
    assert told[0][1] == "DEADLINE_EXCEEDED", told
    assert "for member 1" in told[0][2]


def test_processes_that_do_not_agree_fail():
    told = members(2, "differ")
    assert told[0][1] != "OK", told


def test_processes_serve_together(tmp_path):
    model = str(TINY["tiny-llama"])
    config = {
        "models": [
            {"name": "divided", "source": model, "tensor_parallel": 2},
            {"name": "whole", "source": model},
        ],
        "device": PLAIN | {"threads": 1},
        "memory": {"device_budget": "64MiB"},
    }
    server = server_process.ServerProcess(config, tmp_path, launcher=mpirun(2))
    server.start()
    try:
        for _ in range(2):
            assert answer(server, "divided") == answer(server, "whole")
    finally:
        server.stop()


def test_processes_must_be_as_many_as_devices():
    path = str(GOLDEN / "arch" / "llama.gguf")
    with pytest.raises(AssertionError, match="mpirun has started 3 processes"):
        verify(mpirun(3), path, "--tensor", "2")
