"""The ollama package, unmodified, against the tiny models."""

import ollama
import pytest
from conftest import TINY
from test_openai_client import wait_until_still

MODEL = "tiny-qwen2"
MESSAGES = [{"role": "user", "content": "Where does the river go?"}]
OPTIONS = {"temperature": 0, "num_predict": 12, "seed": 3}


@pytest.fixture(scope="module")
def client(tiny):
    return ollama.Client(host=tiny.url)


def expected(tiny, messages=None, tokens=12):
    body = {"model": MODEL, "messages": messages or MESSAGES}
    body |= {"temperature": 0, "max_tokens": tokens}
    status, answer = tiny.post("/v1/chat/completions", body)
    assert status == 200, answer
    return answer["choices"][0]["message"]["content"]


def test_chat(client, tiny):
    answer = client.chat(MODEL, MESSAGES, options=OPTIONS)
    assert answer.message.role == "assistant" and answer.message.content == expected(tiny)
    assert answer.done and answer.done_reason == "length" and answer.eval_count == 12
    assert answer.prompt_eval_count > 5 and answer.total_duration >= answer.eval_duration > 0


def test_chat_stream(client, tiny):
    pieces = list(client.chat(MODEL + ":latest", MESSAGES, options=OPTIONS, stream=True))
    assert len(pieces) > 5 and [p.done for p in pieces].count(True) == 1 and pieces[-1].done
    assert "".join(piece.message.content for piece in pieces) == expected(tiny)
    assert pieces[-1].eval_count == 12 and pieces[0].model == MODEL + ":latest"


def test_generate(client, tiny):
    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Go"}]
    answer = client.generate(MODEL, "Go", system="Be brief.", options=OPTIONS)
    assert answer.response == expected(tiny, asked)
    pieces = client.generate(MODEL, "Go", system="Be brief.", options=OPTIONS, stream=True)
    assert "".join(piece.response for piece in pieces) == answer.response


def test_generate_raw(client, tiny):
    _, wanted = tiny.post(
        "/v1/completions", {"model": MODEL, "prompt": "Go", "temperature": 0, "max_tokens": 12}
    )
    answer = client.generate(MODEL, "Go", raw=True, options=OPTIONS)
    assert answer.response == wanted["choices"][0]["text"]


def test_stop_and_options_reach_the_model(client, tiny):
    text = expected(tiny)
    stop = text[4:6]
    answer = client.chat(MODEL, MESSAGES, options=OPTIONS | {"stop": [stop], "num_ctx": 4096})
    assert answer.message.content == text[: text.index(stop)] and answer.done_reason == "stop"
    with pytest.raises(ollama.ResponseError, match="temperature") as raised:
        client.chat(MODEL, MESSAGES, options={"temperature": 9})
    assert raised.value.status_code == 400


def test_listing(client):
    models = {model.model: model for model in client.list().models}
    assert set(models) == set(TINY)
    assert models[MODEL].details.family == "qwen2" and models[MODEL].size > 0
    shown = client.show(MODEL)
    assert shown.modelinfo["general.architecture"] == "qwen2" and "completion" in shown.capabilities
    assert shown.template
    client.generate(MODEL, "x", options={"num_predict": 1})
    running = {model.model: model for model in client.ps().models}
    assert running[MODEL].size_vram > 0


def test_loading_and_unloading(client):
    assert client.generate(MODEL).done_reason == "load"
    assert client.chat(MODEL, []).done_reason == "load"
    assert client.generate(MODEL, keep_alive=0).done_reason == "unload"
    assert MODEL not in {model.model for model in client.ps().models}
    assert client.chat(MODEL, MESSAGES, options=OPTIONS).done  # and it comes back


def test_errors_have_ollamas_form(client, tiny):
    with pytest.raises(ollama.ResponseError, match="nothing") as raised:
        client.chat("nothing", MESSAGES)
    assert raised.value.status_code == 404
    with pytest.raises(ollama.ResponseError):
        client.show("nothing")
    status, answer = tiny.post("/api/pull", {"model": "x"})
    assert status == 404 and isinstance(answer["error"], str)
    status, answer = tiny.post("/api/chat", {"messages": []})
    assert status == 400 and "model" in answer["error"]


def test_a_stream_that_is_left_stops_the_work(client, tiny):
    before = tiny.metric("terrace_generated_tokens_total")
    options = {"num_predict": 1900, "temperature": 1}
    stream = client.generate(MODEL, "x", options=options, stream=True)
    next(iter(stream))
    stream.close()
    del stream
    assert wait_until_still(tiny) - before < 1900
