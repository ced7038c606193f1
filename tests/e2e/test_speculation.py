"""A model that guesses for another one: served both ways from one copy of its weights."""

from conftest import GOLDEN

QWEN3 = GOLDEN / "arch" / "qwen3.gguf"


def answers(server, model):
    out = []
    for prompt in ("to be or not to be", "one two three one two three one"):
        status, answer = server.post(
            "/v1/completions",
            {"model": model, "prompt": prompt, "max_tokens": 40, "temperature": 0},
        )
        assert status == 200, answer
        out.append(answer["choices"][0]["text"])
    return out


def test_a_draft_is_the_served_model_itself(servers):
    plain = servers.start({"main": QWEN3})
    expected = answers(plain, "main")
    weights = plain.metric("terrace_memory_bytes", tier="device", kind="weights")
    assert plain.stop() == 0
    server = servers.start(
        {
            "main": {"source": str(QWEN3), "speculation": "draft:helper"},
            "helper": {"source": str(QWEN3)},
        }
    )
    assert answers(server, "main") == expected
    assert answers(server, "helper") == expected
    # Both read the same file, so the draft is always right.
    guessed = server.metric("terrace_guessed_tokens_total", model="main")
    assert guessed > 0
    assert server.metric("terrace_accepted_tokens_total", model="main") == guessed
    held = server.metric("terrace_memory_bytes", tier="device", kind="weights")
    assert held == 2 * weights, "a copy for main, one for helper, none more for the draft"
    assert server.stop() == 0


def test_a_draft_of_a_draft_is_refused(servers):
    server = servers.start(
        {
            "a": {"source": str(QWEN3), "speculation": "draft:b"},
            "b": {"source": str(QWEN3), "speculation": "draft:a"},
            "c": {"source": str(QWEN3)},
        }
    )
    status, answer = server.post("/v1/completions", {"model": "a", "prompt": "x", "max_tokens": 1})
    assert status >= 400
    assert "may not have a draft" in answer["error"]["message"]
    assert len(answers(server, "c")) == 2
    assert server.stop() == 0
