"""Two real models in a device budget that holds only one: the reason that Terrace exists."""

import pytest

MIB = 1 << 20
STAGING_MIB = 32
# What the process may hold beside its budget: code, tokenizers, buffers, the allocator's slack.
OVERHEAD_MIB = 150

PROMPTS = {
    "smollm2-135m": "Rivers carry water from the mountains to",
    "gemma3-270m": "The three primary colours are red, blue and",
}


def complete(server, name, tokens=16):
    status, answer = server.post(
        "/v1/completions",
        {"model": name, "prompt": PROMPTS[name], "max_tokens": tokens, "temperature": 0},
    )
    assert status == 200, answer
    return answer["choices"][0]["text"]


def budget_mib(real_models):
    """For the largest model with 50 MiB of KV cache and workspace, but not for both models."""
    sizes = [path.stat().st_size for path in real_models.values()]
    budget = max(sizes) // MIB + 50
    assert budget < sum(sizes) // MIB, "both models would fit"
    return budget


@pytest.fixture
def server(servers, real_models):
    return servers.start(
        {name: {"source": str(path), "max_context": 2048} for name, path in real_models.items()},
        memory={
            "device_budget": f"{budget_mib(real_models)}MiB",
            "hot_keep_time": "0s",
            "staging": f"{STAGING_MIB}MiB",
        },
    )


def test_alternating_models_answer_alike_within_the_memory_budget(server, real_models):
    budget = budget_mib(real_models) * MIB
    first = {name: complete(server, name) for name in real_models}
    for _ in range(4):
        for name in real_models:
            moved = server.metric("terrace_link_bytes_total")
            assert complete(server, name) == first[name]
            assert server.metric("terrace_link_bytes_total") > moved, "no switch took place"
            assert 0 < server.metric("terrace_memory_bytes", tier="device") <= budget
    allowed = budget + (STAGING_MIB + OVERHEAD_MIB) * MIB
    assert server.memory()["peak"] <= allowed, f"peak above {allowed / MIB:.0f} MiB"
    assert server.metric("terrace_budget_bytes", tier="device") == budget
    assert server.stop() == 0
