"""`terrace plan` against what the ledger books for the two real models, at four settings each."""

import json
import random
import subprocess
import threading

import pytest

from conftest import TINY

SETTINGS = [(512, 1), (1024, 4), (2048, 1), (2048, 3)]  # tokens of a request, requests at once


@pytest.mark.parametrize("name", ["smollm2-135m", "gemma3-270m"])
def test_predictions_are_within_3_percent_of_the_ledger(servers, real_models, name):
    for context, concurrent in SETTINGS:
        server = servers.start(
            {name: {"source": str(real_models[name]), "max_context": 2048}},
            memory={"device_budget": "2GiB"},
            kv={"disk_size": "off"},
        )
        done = subprocess.run(
            [str(server.binary), "plan", "--json", "--context", str(context)]
            + ["--concurrent", str(concurrent), "--config", str(server.folder / "terrace.yaml")],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        plan = json.loads(done.stdout)
        shuffle = random.Random(7)
        prompts = [[shuffle.randrange(1000, 2000) for _ in range(context - 8)] for _ in range(9)]

        def ask(prompt):
            body = {"model": name, "prompt": prompt, "max_tokens": 8, "logit_bias": {"0": -100}}
            status, answer = server.post("/v1/completions", body)
            assert status == 200, answer

        threads = [threading.Thread(target=ask, args=(p,)) for p in prompts[:concurrent]]
        for thread in threads:
            thread.start()
        most = 0  # the ledger's bytes at the busiest moment
        while any(thread.is_alive() for thread in threads):
            most = max(most, server.metric("terrace_memory_bytes", tier="device"))
        for thread in threads:
            thread.join()
        most = max(most, server.metric("terrace_memory_bytes", tier="device"))
        error = plan["all_bytes"] / most - 1
        print(f"{name} {context} x {concurrent}: {plan['all_bytes']} planned, {most:.0f} booked")
        assert abs(error) <= 0.03, (plan, most, server.metrics())
        assert server.stop() == 0


def test_a_divided_model_is_planned_for_each_device(servers):
    """Its share is what the leader's ledger books, and about half of the whole."""
    server = servers.start(
        {
            "whole": {"source": str(TINY["tiny-llama"])},
            "divided": {"source": str(TINY["tiny-llama"]), "tensor_parallel": 2},
        },
        memory={"device_budget": "64MiB"},
        kv={"disk_size": "off"},
    )
    done = subprocess.run(
        [str(server.binary), "plan", "--json", "--context", "64"]
        + ["--config", str(server.folder / "terrace.yaml")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    plan = {model["model"]: model for model in json.loads(done.stdout)["models"]}
    assert plan["whole"]["devices"] == 1 and plan["divided"]["devices"] == 2
    for kind in ("weights_bytes", "kv_bytes"):
        part = plan["divided"][kind] / plan["whole"][kind]
        assert 0.45 < part < 0.75, (kind, plan)
    before = server.metric("terrace_memory_bytes", tier="device", kind="weights")
    status, answer = server.post(
        "/v1/completions", {"model": "divided", "prompt": "The fox", "max_tokens": 4}
    )
    assert status == 200, answer
    booked = server.metric("terrace_memory_bytes", tier="device", kind="weights") - before
    assert booked == plan["divided"]["weights_bytes"]
    assert server.stop() == 0
