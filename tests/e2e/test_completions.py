"""Text completions as evaluation harnesses and editors use them: log probabilities of the prompt,
the likeliest of several answers."""

import concurrent.futures
import json
import math
import struct

import pytest
from conftest import GOLDEN, openai_client

MODEL = "tiny-qwen2"
VOCAB = 512


@pytest.fixture(scope="module")
def server(module_servers):
    # The kernels for few rows, whose tolerance is the one of KV in F16.
    return module_servers.start(
        {MODEL: GOLDEN / "arch" / "qwen2.gguf"},
        memory={"device_budget": "64MiB"},
        device={"deterministic": True},
    )


@pytest.fixture(scope="module")
def golden():
    """The tokens, the distribution (logprobs) after each of them, and how far off one may be."""
    folder = GOLDEN / "arch"
    tokens = json.loads((folder / "qwen2.json").read_text())["tokens"]
    raw = (folder / "qwen2.logits.f32").read_bytes()
    logits = struct.unpack(f"<{len(raw) // 4}f", raw)
    rows = [logits[i * VOCAB : (i + 1) * VOCAB] for i in range(len(tokens))]
    logprobs = []
    for row in rows:
        log_sum = math.log(sum(math.exp(x) for x in row))
        logprobs.append([x - log_sum for x in row])
    rms = math.sqrt(sum(x * x for x in logits) / len(logits))
    # As tests/engine/golden_test.cc: KV in F16, two layers of two blocks and the head, the largest
    # of all logits; a logprob has the logit's error and that of the sum, which is no larger.
    u = 2**-11 / math.sqrt(3)
    return tokens, logprobs, 2 * rms * u * math.sqrt(5) * math.sqrt(2 * math.log(len(logits)))


def check_scores(found, golden):
    tokens, logprobs, tolerance = golden
    scores = found.token_logprobs
    assert scores[0] is None and found.top_logprobs[0] is None
    for i in range(1, len(tokens)):
        row = logprobs[i - 1]
        assert scores[i] == pytest.approx(row[tokens[i]], abs=tolerance), i
        best = sorted(row, reverse=True)[:2]
        top = found.top_logprobs[i]
        # Tokens that are parts of characters are spelled alike and take one place.
        assert len(top) == 2 or list(top) == ["\N{REPLACEMENT CHARACTER}"], top
        for value in top.values():
            assert min(abs(value - each) for each in best) <= tolerance, i


def test_echo_with_logprobs_scores_the_prompt(server, golden):
    """Also where the KV of the prompt is held already, and with many at once."""
    tokens = golden[0]
    client = openai_client(server)
    client.completions.create(model=MODEL, prompt=tokens, max_tokens=4)

    def ask(_):
        return client.completions.create(
            model=MODEL, prompt=tokens, echo=True, logprobs=2, max_tokens=0
        )

    with concurrent.futures.ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(ask, range(6)))
    for answer in answers:
        choice = answer.choices[0]
        assert len(choice.logprobs.tokens) == len(tokens) == answer.usage.prompt_tokens
        check_scores(choice.logprobs, golden)
        assert answer.usage.completion_tokens == 0 and choice.finish_reason == "length"
        offsets = choice.logprobs.text_offset
        assert offsets == sorted(offsets) and offsets[0] == 0 and offsets[-1] < len(
            choice.text.encode()
        )
    assert len({json.dumps(answer.choices[0].logprobs.token_logprobs) for answer in answers}) == 1


def test_echo_with_logprobs_goes_on_as_without(server, golden):
    tokens = golden[0]
    client = openai_client(server)
    options = {"model": MODEL, "prompt": tokens, "temperature": 0, "max_tokens": 5, "logprobs": 2}
    plain = client.completions.create(**options).choices[0]
    whole = client.completions.create(**options, echo=True, n=2)
    for choice in whole.choices:
        assert choice.text.endswith(plain.text) and len(choice.text) > len(plain.text)
        check_scores(choice.logprobs, golden)
        assert choice.logprobs.token_logprobs[len(tokens) :] == plain.logprobs.token_logprobs
    text, found = "", []
    for chunk in client.completions.create(**options, echo=True, stream=True):
        text += chunk.choices[0].text
        if chunk.choices[0].logprobs:
            found += chunk.choices[0].logprobs.token_logprobs
    assert text == whole.choices[0].text
    assert found == whole.choices[0].logprobs.token_logprobs


def test_best_of_gives_the_likeliest(server):
    client = openai_client(server)
    options = {"model": MODEL, "prompt": [9, 8, 7], "max_tokens": 6, "seed": 3, "logprobs": 0}
    options["temperature"] = 1.5
    every = client.completions.create(**options, n=8).choices

    def mean(choice):
        scores = choice.logprobs.token_logprobs
        return sum(scores) / max(len(scores), 1)

    want = [choice.text for choice in sorted(every, key=mean, reverse=True)][:2]
    best = client.completions.create(**options, n=2, best_of=8)
    assert [choice.text for choice in best.choices] == want
    assert best.usage.completion_tokens > sum(len(c.logprobs.tokens) for c in best.choices)
