"""Hard cases about the fields of requests, over real HTTP. Their numbers are in the names."""

import concurrent.futures
import json
import math
import struct
import time

import pytest
from conftest import GOLDEN, openai_client
from test_hard_cases import raw
from test_openai_client import END

MODEL = "tiny-qwen2"
PATH = "/v1/chat/completions"
USER = {"role": "user", "content": "x"}
SHORT = {"model": MODEL, "messages": [USER], "max_tokens": 2}


def chat(server, **fields):
    return server.post(PATH, SHORT | fields)


def prompt_of(server, messages):
    status, answer = server.post("/tokenize", {"model": MODEL, "messages": messages})
    assert status == 200, answer
    return answer["tokens"]


def refused(server, name, path=PATH, **fields):
    status, answer = server.post(path, SHORT | fields)
    assert status == 400, (fields, answer)
    assert answer["error"]["param"] == name, answer
    return answer["error"]


def test_a16_content_of_a_turn_with_calls_may_be_missing(tiny):
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    prompts = []
    for content in ({"content": None}, {}, {"content": ""}, {"content": []}):
        turn = {"role": "assistant", "tool_calls": [call]} | content
        messages = [USER, turn, {"role": "tool", "tool_call_id": "abcdefghi", "content": "42"}]
        prompts.append(prompt_of(tiny, messages))
        assert chat(tiny, messages=messages)[0] == 200
    assert all(prompt == prompts[0] for prompt in prompts)
    refused(tiny, "messages[1].content", messages=[USER, {"role": "user", "content": None}])


def test_a17_parts_are_the_text_they_are_of(tiny):
    def parts(*texts):
        return [{"type": "text", "text": text} for text in texts]

    for role in ("system", "user", "assistant"):
        whole = prompt_of(tiny, [USER, {"role": role, "content": "one two"}])
        for content in (parts("one two"), parts("one", " tw", "o")):
            assert prompt_of(tiny, [USER, {"role": role, "content": content}]) == whole
    strange = [{"role": "user", "content": [{"type": "hum"}]}]
    error = refused(tiny, "messages[0].content[0].type", messages=strange)
    assert "hum" in error["message"]


# Every optional field of docs/API.md, by where it is taken.
BOTH = """n
    max_completion_tokens max_tokens stream stream_options stop temperature top_p top_k min_p
    typical_p presence_penalty frequency_penalty repetition_penalty seed logit_bias logprobs user
    metadata response_format guided_json json_schema guided_regex regex guided_choice guided_grammar
    grammar ebnf structured_outputs""".split()
CHATS = """top_logprobs tools tool_choice parallel_tool_calls functions chat_template_kwargs
    add_generation_prompt include_reasoning separate_reasoning reasoning_format
    reasoning_effort""".split()
TEXTS = "best_of echo suffix".split()


def test_a18_null_is_absent(tiny):
    greedy = {"temperature": 0, "max_tokens": 2}
    for path, own, ask in (
        (PATH, CHATS, {"messages": [USER]}),
        ("/v1/completions", TEXTS, {"prompt": "x"}),
    ):
        body = {"model": MODEL} | ask
        _, plain = tiny.post(path, body | greedy)
        status, nulls = tiny.post(path, dict.fromkeys(BOTH + own) | body | greedy)
        assert status == 200, nulls
        assert nulls["choices"] == plain["choices"] and nulls["usage"] == plain["usage"]
        for name in BOTH + own:
            assert tiny.post(path, body | greedy | {name: None})[0] == 200, name
    assert chat(tiny, logit_bias={}, stop=[])[0] == 200
    # Each form of stop stops: the bytes of the alphabet are one token each.
    any_letter = {"guided_regex": "zabcdefgh", "max_tokens": 20}
    for stop, rest in (("e", "zabcd"), (["x", "d", "y", "gh"], "zabc"), (["q"], "zabcdefgh")):
        _, answer = chat(tiny, **any_letter, stop=stop)
        assert answer["choices"][0]["message"]["content"] == rest
    refused(tiny, "stop", stop=7)
    refused(tiny, "stop[1]", stop=["a", 7])


def test_a19_max_completion_tokens(tiny):
    long = {"logit_bias": {str(END): -100}, "temperature": 0}

    def tokens(**limits):
        body = {"model": MODEL, "messages": [USER]} | long | limits
        status, answer = tiny.post(PATH, body)
        assert status == 200, answer
        return answer["usage"]["completion_tokens"], answer["choices"][0]["finish_reason"]

    assert tokens(max_completion_tokens=5) == (5, "length")
    assert tokens(max_completion_tokens=5, max_tokens=50) == (5, "length")
    room, reason = tokens(max_completion_tokens=10**8)
    assert reason == "length" and room > 100
    for bad in (0, -1):
        refused(tiny, "max_completion_tokens", max_completion_tokens=bad)


def test_a21_logit_bias_outside_the_vocabulary(tiny):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        busy = {"max_tokens": 200, "temperature": 0, "logit_bias": {str(END): -100}}
        neighbour = pool.submit(chat, tiny, **busy)
        for key, value in (
            ("191222", 1), ("-1", 1), ("abc", 1), ("3.5", 1), ("1", 1e9), ("1", "x"), ("512", 0),
        ):
            refused(tiny, f'logit_bias["{key}"]', logit_bias={key: value})
        for value in (100, -100, 0.5):
            assert chat(tiny, logit_bias={"5": value})[0] == 200
        assert chat(tiny, logit_bias={str(i): 1 for i in range(512)})[0] == 200
        # 5,000 keys are more than this vocabulary has: the first that it has not is named.
        refused(tiny, 'logit_bias["512"]', logit_bias={str(i): 1 for i in range(5000)})
        twice = ",".join(f'"{i % 512}": 1' for i in range(5000))
        body = json.dumps(SHORT)[:-1] + f', "logit_bias": {{{twice}}}}}'
        assert tiny.request("POST", PATH, body.encode())[0] == 200
        status, answer = neighbour.result()
    assert status == 200 and answer["usage"]["completion_tokens"] == 200


def test_a22_numbers_that_are_not_numbers(tiny):
    fields = "temperature top_p min_p frequency_penalty presence_penalty repetition_penalty".split()
    for field in fields:
        for value in ("NaN", "Infinity", "-Infinity", "1e999", '"0.7"'):
            body = json.dumps(SHORT)[:-1] + f', "{field}": {value}}}'
            status, _, text = tiny.request("POST", PATH, body.encode())
            assert status == 400, (field, value, text)
            if value in ('"0.7"', "1e999"):  # the others are no JSON
                assert json.loads(text)["error"]["param"] == field
        if field != "repetition_penalty":
            for value in ("-0.0", "1e-40"):
                body = json.dumps(SHORT)[:-1] + f', "{field}": {value}}}'
                assert tiny.request("POST", PATH, body.encode())[0] == 200, (field, value)
    greedy, negative = (
        [chat(tiny, temperature=zero, max_tokens=20, seed=seed)[1]["choices"] for seed in range(2)]
        for zero in (0, -0.0)
    )
    assert greedy[0] == greedy[1] == negative[0] == negative[1]
    assert chat(tiny, seed=2**63)[0] == 200
    assert chat(tiny, seed=-1)[0] == 200
    assert chat(tiny, top_k=0)[0] == 200
    refused(tiny, "top_k", top_k=-5)
    refused(tiny, "seed", seed=1.5)


def test_a25_broken_arguments_in_the_history_are_no_server_error(tiny):
    for arguments in ("{", "", "[1]", {"a": 1}, None, 7):
        call = {"id": "abcdefghi", "function": {"name": "f", "arguments": arguments}}
        messages = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
        status, answer = chat(tiny, messages=messages)
        assert status in (200, 400), answer
        if status == 400:
            assert "messages[1].tool_calls[0]" in json.dumps(answer["error"])


@pytest.mark.parametrize("tokens", [1, 3])
def test_a30_chunks_as_clients_rely_on_them(tiny, tokens):
    client = openai_client(tiny)
    chunks = list(
        client.chat.completions.create(
            model=MODEL, messages=[USER], max_tokens=tokens, stream=True,
            logit_bias={str(END): -100},
        )
    )
    assert len({(chunk.id, chunk.model, chunk.created) for chunk in chunks}) == 1
    assert all(chunk.choices and chunk.choices[0].index == 0 for chunk in chunks)
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert deltas[0].role == "assistant" and deltas[0].content == ""
    assert all(delta.role is None for delta in deltas[1:])
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons[-1] == "length" and set(reasons[:-1]) == {None}
    (stopped,) = list(
        client.chat.completions.create(
            model=MODEL, messages=[USER], max_tokens=tokens + 5, stream=True,
            extra_body={"guided_choice": ["q" * tokens]},
        )
    )[-1].choices
    assert stopped.finish_reason == "stop" and stopped.delta.role is None
    _, _, text = tiny.request("POST", PATH, json.dumps(SHORT | {"stream": True}).encode())
    events = text.decode().strip().split("\n\n")
    assert events[-1] == "data: [DONE]" and all(len(event) > 10 for event in events)


def test_a31_errors_before_a_stream_have_their_status(tiny):
    for fields, status in (
        ({"n": 0}, 400),
        ({"model": "none"}, 404),
        ({"response_format": {"type": "poem"}}, 400),
        ({"tool_choice": "required"}, 400),
    ):
        found, headers, text = tiny.request(
            "POST", PATH, json.dumps(SHORT | {"stream": True} | fields).encode()
        )
        assert found == status, text
        assert headers["content-type"] == "application/json"
        assert json.loads(text)["error"]["message"]


def poisoned(path, out, token):
    """A copy of a GGUF file with F16 matrices in which the embedding of `token` is not a number."""
    data = bytearray(path.read_bytes())
    at = 8

    def read(form):
        nonlocal at
        (value,) = struct.unpack_from("<" + form, data, at)
        at += struct.calcsize(form)
        return value

    def text():
        nonlocal at
        size = read("Q")
        at += size
        return bytes(data[at - size : at]).decode()

    def skip(kind):
        if kind == 8:
            text()
        elif kind == 9:
            inner, count = read("I"), read("Q")
            for _ in range(count):
                skip(inner)
        else:
            read("BbHhIif?..Qqd"[kind])

    tensors, keys = read("Q"), read("Q")
    for _ in range(keys):
        text()
        skip(read("I"))
    places = {}
    for _ in range(tensors):
        name = text()
        shape = [read("Q") for _ in range(read("I"))]
        places[name] = (shape, read("I"), read("Q"))
    (width, _), kind, offset = places["token_embd.weight"]
    assert kind == 1 and "output.weight" in places, "F16, and a head of its own"
    row = math.ceil(at / 32) * 32 + offset + token * width * 2
    data[row : row + width * 2] = struct.pack("<e", math.nan) * width
    out.write_bytes(data)
    return out


def test_a31_a_fault_after_three_tokens_is_one_event_and_closes(tiny, servers, tmp_path):
    """The answer is q, x, z, each a token; with z in the sequence there are no numbers any more."""
    name = "tiny-llama"
    _, answer = tiny.post(
        "/tokenize", {"model": name, "prompt": "qxz", "add_special_tokens": False}
    )
    source = poisoned(GOLDEN / "arch" / "llama.gguf", tmp_path / "p.gguf", answer["tokens"][-1])
    server = servers.start({name: source}, memory={"device_budget": "64MiB"})
    path = "/v1/completions"
    body = {
        "model": name, "prompt": "b", "max_tokens": 50, "logprobs": 0,
        "guided_regex": "qxz[a-z]{9}",
    }
    status, answer = server.post(path, body)
    assert status == 500 and "not finite" in answer["error"]["message"], answer
    waits = []
    for _ in range(3):  # one wait may fall on a moment in which the machine is busy otherwise
        with raw(server, body | {"stream": True}, path) as client:
            client.settimeout(60)
            text = b""
            while b'"error"' not in text or not text.endswith(b"\n"):
                part = client.recv(65536)
                assert part, text
                text += part
            start = time.monotonic()
            while part := client.recv(65536):  # the end of the chunks
                text += part
            waits.append(time.monotonic() - start)
        assert text.startswith(b"HTTP/1.1 200")
        events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith(b"data: {")]
        tokens = [
            token for event in events[:-1] for token in event["choices"][0]["logprobs"]["tokens"]
        ]
        assert tokens == ["q", "x", "z"]
        assert set(events[-1]) == {"error"} and "not finite" in events[-1]["error"]["message"]
        assert all(event["choices"][0]["finish_reason"] is None for event in events[:-1])
        assert b"[DONE]" not in text
    assert min(waits) < 1, waits
    # The server goes on.
    fine = body | {"guided_regex": "qxq", "max_tokens": 9}
    assert server.post(path, fine)[0] == 200
