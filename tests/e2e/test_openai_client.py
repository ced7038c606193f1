"""The openai client, unmodified, against the tiny models."""

import asyncio
import concurrent.futures
import json
import time

import openai
import pytest
from conftest import GOLDEN, TINY, openai_client

MODEL = "tiny-qwen2"
QUESTION = [{"role": "user", "content": "The quick brown fox"}]
END = 507  # <|im_end|> of the tiny vocabularies
GREEDY = {"temperature": 0, "max_tokens": 12, "logit_bias": {str(END): -100}}


def chat(client, model=MODEL, **options):
    return client.chat.completions.create(model=model, messages=QUESTION, **(GREEDY | options))


def test_models_are_listed(client):
    names = {model.id for model in client.models.list()}
    assert {"tiny-llama", "tiny-qwen2", "tiny-qwen3", "tiny-gemma3"} <= names
    assert client.models.retrieve(MODEL).id == MODEL


def test_chat(client):
    answer = chat(client)
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.finish_reason == "length"
    assert answer.model == MODEL and answer.id.startswith("chatcmpl-")
    usage = answer.usage
    assert usage.completion_tokens == 12
    assert usage.total_tokens == usage.prompt_tokens + 12
    assert chat(client).choices[0].message.content == choice.message.content


def test_completion_of_every_model_matches_the_reference(client, tiny):
    """24 greedy tokens that an independent engine gave, where its margin tells them apart."""
    for name in TINY:
        golden = json.loads((GOLDEN / "arch" / f"{name.removeprefix('tiny-')}.json").read_text())
        answer = client.completions.create(
            model=name, prompt=golden["tokens"], max_tokens=24, temperature=0
        )
        _, expected = tiny.post("/detokenize", {"model": name, "tokens": golden["greedy"]})
        clear = 0
        while clear < 24 and golden["greedy_margin"][clear] > 0.1:
            clear += 1
        _, start = tiny.post("/detokenize", {"model": name, "tokens": golden["greedy"][:clear]})
        assert answer.choices[0].text.strip().startswith(start["prompt"].strip()), name
        if clear == 24:
            assert answer.choices[0].text.strip() == expected["prompt"].strip()


def test_streaming_gives_the_same_text(client):
    whole = chat(client)
    pieces, reasons, ids = [], [], set()
    for chunk in chat(client, stream=True):
        assert len(chunk.choices) == 1
        ids.add(chunk.id)
        pieces.append(chunk.choices[0].delta.content or "")
        reasons.append(chunk.choices[0].finish_reason)
    assert "".join(pieces) == whole.choices[0].message.content
    assert reasons[-1] == "length" and set(reasons[:-1]) == {None}
    assert len(ids) == 1


def test_stream_helper_accumulates(client):
    text = chat(client).choices[0].message.content
    stop = text[-2:]  # The helper refuses answers that the token limit ended.
    with client.chat.completions.stream(
        model=MODEL, messages=QUESTION, stop=stop, **GREEDY
    ) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == text[: text.index(stop)]
    assert final.choices[0].finish_reason == "stop"


@pytest.mark.parametrize("endpoint", ["chat", "completion"])
def test_usage_in_the_stream(client, endpoint):
    def ask(**options):
        if endpoint == "chat":
            return chat(client, stream=True, **options)
        return client.completions.create(
            model=MODEL, prompt="The quick", max_tokens=5, stream=True, **options
        )

    assert all(chunk.usage is None for chunk in ask())
    chunks = list(ask(stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and all(chunk.usage is None for chunk in chunks[:-1])
    tokens = 12 if endpoint == "chat" else 5
    assert chunks[-1].usage.completion_tokens == tokens
    if endpoint == "chat":
        whole = chat(client).usage
        assert chunks[-1].usage.prompt_tokens == whole.prompt_tokens
        assert chunks[-1].usage.total_tokens == whole.total_tokens


def test_stop(client):
    text = chat(client, max_tokens=40).choices[0].message.content
    stop = text[len(text) // 2 : len(text) // 2 + 3]
    cut = text[: text.index(stop)]
    answer = chat(client, max_tokens=40, stop=[stop, "never to be seen"])
    assert answer.choices[0].message.content == cut
    assert answer.choices[0].finish_reason == "stop"
    streamed = "".join(
        chunk.choices[0].delta.content or ""
        for chunk in chat(client, max_tokens=40, stop=stop, stream=True)
    )
    assert streamed == cut


def test_seed(client):
    def ask(seed):
        answer = chat(client, temperature=1.5, seed=seed, max_tokens=30)
        return answer.choices[0].message.content

    assert ask(7) == ask(7)
    assert len({ask(seed) for seed in range(5)}) > 1


def test_n_gives_choices_that_differ(client):
    answer = chat(client, temperature=1.5, n=3, max_tokens=30, seed=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) > 1
    assert answer.usage.completion_tokens == 90


def test_logprobs(client):
    answer = chat(client, logprobs=True, top_logprobs=4)
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == 12
    assert "".join(token.token for token in tokens) == answer.choices[0].message.content
    for token in tokens:
        assert token.logprob <= 0
        assert len(token.top_logprobs) == 4
        best = [top.logprob for top in token.top_logprobs]
        assert best == sorted(best, reverse=True)
    streamed = [
        token
        for chunk in chat(client, logprobs=True, stream=True)
        if chunk.choices[0].logprobs
        for token in chunk.choices[0].logprobs.content
    ]
    assert [token.token for token in streamed] == [token.token for token in tokens]
    old = client.completions.create(
        model=MODEL, prompt="The quick", max_tokens=4, temperature=0, logprobs=2
    ).choices[0]
    assert len(old.logprobs.tokens) == len(old.logprobs.token_logprobs) == 4
    assert all(len(top) == 2 for top in old.logprobs.top_logprobs)


def test_logit_bias_forces_a_token(client, tiny):
    _, ids = tiny.post(
        "/tokenize", {"model": MODEL, "prompt": "!", "add_special_tokens": False}
    )
    answer = chat(client, logit_bias={str(ids["tokens"][0]): 100})
    assert answer.choices[0].message.content == "!" * 12


def test_cancelling_a_stream_stops_the_work(client, tiny):
    stream = chat(client, stream=True, max_tokens=2000, n=8)
    for _ in range(3):
        next(stream)
    stream.close()
    stopped = wait_until_still(tiny)
    assert stopped < 8 * 2000
    assert chat(client).choices[0].message.content


def wait_until_still(server, timeout_s=10):
    """The count of generated tokens once it no longer moves."""
    deadline = time.monotonic() + timeout_s
    last = server.metric("terrace_generated_tokens_total")
    while time.monotonic() < deadline:
        time.sleep(0.1)
        now = server.metric("terrace_generated_tokens_total")
        if now == last and server.metric("terrace_running_requests") == 0:
            return now
        last = now
    raise AssertionError("tokens are still being generated")


def test_two_models_at_once(client):
    models = (MODEL, "tiny-qwen3")
    alone = {model: chat(client, model).choices[0].message.content for model in models}
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        asked = [
            (model, pool.submit(chat, client, model)) for _ in range(8) for model in alone
        ]
        for model, answer in asked:
            assert answer.result().choices[0].message.content == alone[model]


def test_unknown_model(client):
    with pytest.raises(openai.NotFoundError) as caught:
        chat(client, "tiny-qwen4")
    assert caught.value.code == "model_not_found"
    assert MODEL in caught.value.message and "tiny-llama" in caught.value.message


def test_malformed_json(tiny, client):
    for body in (b"{", b"[]", b"", b'{"model": "tiny-qwen2", "messages": [}', b"\xff\xfe{"):
        status, headers, text = tiny.request("POST", "/v1/chat/completions", body)
        assert status == 400 and headers["content-type"] == "application/json"
        assert b'"error"' in text
        text.decode()
    assert chat(client).choices[0].message.content


def test_wrong_types_are_named(client):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, temperature="0.7")
    assert caught.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, response_format={"type": "poem"})
    assert caught.value.param == "response_format.type"


def test_async_client_with_many_requests(tiny):
    async def ask_all():
        async with openai.AsyncOpenAI(
            base_url=f"{tiny.url}/v1", api_key="unused", max_retries=0
        ) as client:
            return await asyncio.gather(
                *(
                    client.chat.completions.create(
                        model=MODEL, messages=QUESTION, **GREEDY, timeout=120
                    )
                    for _ in range(40)
                )
            )

    answers = asyncio.run(ask_all())
    assert len({answer.choices[0].message.content for answer in answers}) == 1


def test_client_time_outs_do_not_leave_work_behind(tiny):
    hurried = openai_client(tiny, timeout=0.2)
    try:
        chat(hurried, max_tokens=2000, n=16)
    except openai.APITimeoutError:
        pass
    wait_until_still(tiny)
