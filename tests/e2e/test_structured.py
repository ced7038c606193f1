"""Answers with a form: JSON schemas, tools and their clients' helpers, against tiny models with
random weights, which would never come upon these forms by themselves, and against real ones."""

import concurrent.futures
import enum
import json
import os

import anthropic
import jsonschema
import openai
import pydantic
import pytest
import random_schemas
from conftest import openai_client

MODEL = "tiny-qwen2"
QUESTION = [{"role": "user", "content": "Describe a city."}]
SEED = int(os.environ.get("TERRACE_SCHEMA_SEED", "1"))
SCHEMAS = 200


class Size(enum.Enum):
    small = "small"
    large = "large"


class City(pydantic.BaseModel):
    model_config = {"extra": "forbid"}
    name: str = pydantic.Field(max_length=12)
    people: int = pydantic.Field(ge=0, le=40_000_000)
    size: Size
    coastal: bool
    twin: str | None = pydantic.Field(max_length=8)


class GetWeather(pydantic.BaseModel):
    city: str = pydantic.Field(max_length=12)
    unit: Size


def answer_to(client, schema, seed):
    return client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        temperature=1,
        seed=seed,
        max_tokens=1800,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "s", "schema": schema, "strict": True},
        },
    )


def test_random_schemas_hold(client):
    """Every answer is checked by another implementation of JSON schema."""

    def check(number):
        seed = SEED * 1000 + number
        schema = random_schemas.generate(seed)
        answer = answer_to(client, schema, seed).choices[0]
        text = answer.message.content
        assert answer.finish_reason == "stop", (seed, schema, text)
        try:
            jsonschema.validate(json.loads(text), schema)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {text!r} for {json.dumps(schema)}") from error
        return len(text)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        lengths = list(pool.map(check, range(SCHEMAS)))
    assert len(lengths) == SCHEMAS and max(lengths) > 100


def test_a_seed_gives_the_same_answer_also_under_a_schema(client):
    schema = random_schemas.generate(5)
    texts = {answer_to(client, schema, 7).choices[0].message.content for _ in range(3)}
    assert len(texts) == 1


def test_logprobs_are_of_what_is_allowed(client):
    answer = client.chat.completions.create(
        model=MODEL,
        messages=QUESTION,
        logprobs=True,
        top_logprobs=3,
        extra_body={"guided_choice": ["qa", "qb"]},
    )
    tokens = answer.choices[0].logprobs.content
    assert "".join(token.token for token in tokens) in ("qa", "qb")
    for token in tokens:
        assert all(each.logprob > -1000 for each in token.top_logprobs)
        assert sum(2.718281828**each.logprob for each in token.top_logprobs) <= 1.0001


def test_speculation_keeps_to_the_schema(servers):
    from conftest import TINY

    server = servers.start(
        {MODEL: {"source": str(TINY[MODEL]), "speculation": "ngram"}},
        memory={"device_budget": "128MiB"},
    )
    client = openai_client(server)
    for seed in range(6):
        schema = random_schemas.generate(seed)
        text = answer_to(client, schema, seed).choices[0].message.content
        jsonschema.validate(json.loads(text), schema)


def helpers_work(client, model, **options):
    """The helpers of the openai client, as its documentation uses them."""
    parsed = client.chat.completions.parse(
        model=model, messages=QUESTION, response_format=City, **options
    )
    assert isinstance(parsed.choices[0].message.parsed, City)
    with client.chat.completions.stream(
        model=model, messages=QUESTION, response_format=City, **options
    ) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, City)

    tools = [openai.pydantic_function_tool(GetWeather)]
    # A small model that decodes greedily would call again and again.
    single = {"parallel_tool_calls": False}
    for choice in ("required", {"type": "function", "function": {"name": "GetWeather"}}):
        called = client.chat.completions.parse(
            model=model, messages=QUESTION, tools=tools, tool_choice=choice, **single, **options
        ).choices[0]
        assert called.finish_reason == "tool_calls"
        call = called.message.tool_calls[0]
        assert isinstance(call.function.parsed_arguments, GetWeather)
    with client.chat.completions.stream(
        model=model, messages=QUESTION, tools=tools, tool_choice="required", **single, **options
    ) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion().choices[0]
    assert "tool_calls.function.arguments.delta" in kinds
    assert isinstance(final.message.tool_calls[0].function.parsed_arguments, GetWeather)

    # The whole round: call, result, answer.
    messages = QUESTION + [
        called.message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}),
        {"role": "tool", "tool_call_id": call.id, "content": "12 degrees"},
    ]
    for message in messages:
        for each in message.get("tool_calls") or []:
            each["function"].pop("parsed_arguments", None)
    answer = client.chat.completions.create(
        model=model, messages=messages, tools=tools, tool_choice="none", **options
    )
    assert answer.choices[0].finish_reason in ("stop", "length")

    response = client.responses.parse(
        model=model,
        input="Describe a city.",
        text_format=City,
        max_output_tokens=options.get("max_tokens"),
        temperature=options.get("temperature"),
    )
    assert isinstance(response.output_parsed, City)
    with client.responses.stream(
        model=model,
        input="Describe a city.",
        text_format=City,
        max_output_tokens=options.get("max_tokens"),
        temperature=options.get("temperature"),
    ) as stream:
        for _ in stream:
            pass
        assert isinstance(stream.get_final_response().output_parsed, City)


def test_helpers_with_a_tiny_model(client):
    helpers_work(client, MODEL, temperature=1, max_tokens=400)


def test_helpers_with_real_models(servers, real_models):
    server = servers.start(
        {name: str(path) for name, path in real_models.items()},
        memory={"device_budget": "1GiB"},
    )
    client = openai_client(server, timeout=300)
    for name in real_models:
        helpers_work(client, name, temperature=0, max_tokens=300)


def test_responses_call_tools(client):
    response = client.responses.create(
        model=MODEL,
        input="What is the weather?",
        tools=[
            {
                "type": "function",
                "name": "weather",
                "parameters": {
                    "type": "object",
                    "properties": {"city": {"enum": ["Oslo", "Rome"]}},
                    "required": ["city"],
                },
            }
        ],
        tool_choice="required",
        max_output_tokens=200,
    )
    call = next(item for item in response.output if item.type == "function_call")
    assert call.name == "weather" and json.loads(call.arguments)["city"] in ("Oslo", "Rome")
    again = client.responses.create(
        model=MODEL,
        input=[
            {"role": "user", "content": "What is the weather?"},
            call.model_dump(),
            {"type": "function_call_output", "call_id": call.call_id, "output": "rain"},
        ],
        max_output_tokens=5,
    )
    assert again.usage.output_tokens <= 5


def test_the_anthropic_client(tiny):
    client = anthropic.Anthropic(base_url=tiny.url, api_key="unused", max_retries=0)
    message = client.messages.create(model=MODEL, max_tokens=8, messages=QUESTION)
    assert message.role == "assistant" and message.usage.output_tokens <= 8
    tools = [
        {
            "name": "weather",
            "description": "Weather at a place",
            "input_schema": {
                "type": "object",
                "properties": {"city": {"enum": ["Oslo", "Rome"]}},
                "required": ["city"],
            },
        }
    ]
    common = {
        "model": MODEL,
        "max_tokens": 300,
        "messages": QUESTION,
        "tools": tools,
        "tool_choice": {"type": "any"},
    }
    called = client.messages.create(**common)
    assert called.stop_reason == "tool_use"
    use = next(block for block in called.content if block.type == "tool_use")
    assert use.input["city"] in ("Oslo", "Rome")
    with client.messages.stream(**common) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use"
    streamed = next(block for block in final.content if block.type == "tool_use")
    assert streamed.input["city"] in ("Oslo", "Rome")
    with pytest.raises(anthropic.BadRequestError):
        client.messages.create(model=MODEL, max_tokens=0, messages=QUESTION)


def test_embeddings_and_their_likeness(client, tiny):
    texts = ["The quick brown fox", "The quick brown fox", "something else"]
    answer = client.embeddings.create(model=MODEL, input=texts)  # base64 inside the client
    plain = client.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    vectors = [each.embedding for each in answer.data]
    assert vectors[0] == pytest.approx(plain.data[0].embedding, abs=1e-6)
    assert len(vectors[0]) == 128 and vectors[0] == vectors[1]
    assert sum(x * x for x in vectors[2]) == pytest.approx(1, abs=1e-4)
    short = client.embeddings.create(model=MODEL, input=texts[0], dimensions=16).data[0].embedding
    assert len(short) == 16 and sum(x * x for x in short) == pytest.approx(1, abs=1e-4)
    status, ranked = tiny.post(
        "/v1/rerank", {"model": MODEL, "query": texts[0], "documents": ["other words", texts[0]]}
    )
    assert status == 200 and ranked["results"][0]["index"] == 1


# ---- A23, A24 over HTTP: refused within a second, and the server goes on ----


def test_a23_a_schema_that_cannot_be_compiled_is_a_400(client):
    for schema, word in (
        ({"properties": {"a": {"pattern": "(["}}}, "#/properties/a/pattern"),
        ({"type": "array", "uniqueItems": True}, "#/uniqueItems"),
        ({"$ref": "#/$defs/nowhere"}, "refers to nothing"),
        ({"$ref": "#"}, "itself"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            answer_to(client, schema, 1)
        assert word in caught.value.message and caught.value.param


def used(server):
    """(processor seconds, most bytes of memory) of the server's process so far."""
    with open(f"/proc/{server.pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    with open(f"/proc/{server.pid}/status") as status:
        most = next(line for line in status if line.startswith("VmHWM"))
    ticks = int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK"), int(most.split()[1]) * 1024


def test_a24_deep_nesting_is_a_400(tiny):
    nested = '{"items":' * 20_000 + "{}" + "}" * 20_000
    chain = "".join(f"r{i} ::= r{i + 1}\n" for i in range(5000)) + 'r5000 ::= "a"\nroot ::= r0'
    head = f'{{"model":"{MODEL}","messages":[{{"role":"user","content":"x"}}],'
    for field in (
        '"x":' + "[" * 100_000 + "]" * 100_000,
        f'"guided_json":{nested}',
        '"grammar":' + json.dumps("root ::= " + "(" * 60_000 + '"a"' + ")" * 60_000),
        '"grammar":' + json.dumps(chain),
    ):
        seconds, bytes_before = used(tiny)
        status, _, text = tiny.request("POST", "/v1/chat/completions", f"{head}{field}}}".encode())
        assert status == 400 and b"deeper than" in text, text[:300]
        seconds_after, bytes_after = used(tiny)
        assert seconds_after - seconds < 1 and bytes_after - bytes_before < 64 << 20, field[:40]
    assert tiny.post("/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 1})[0] == 200
