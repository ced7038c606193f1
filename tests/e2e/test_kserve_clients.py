"""The tritonclient package, unmodified, over HTTP and gRPC against the tiny models."""

import json
import queue
import time

import numpy
import pytest
import server_process
import tritonclient.grpc
import tritonclient.http
from conftest import TINY
from test_openai_client import END, wait_until_still
from tritonclient.utils import InferenceServerException

MODEL = "tiny-qwen2"
PROMPT = "The river"


@pytest.fixture(scope="module")
def server(module_servers):
    return module_servers.start(
        TINY,
        memory={"device_budget": "256MiB"},
        server={"grpc_port": server_process.free_port()},
    )


@pytest.fixture(scope="module")
def http(server):
    client = tritonclient.http.InferenceServerClient(f"127.0.0.1:{server.port}")
    yield client
    client.close()


@pytest.fixture(scope="module")
def grpc(server):
    client = tritonclient.grpc.InferenceServerClient(
        f"127.0.0.1:{server.config['server']['grpc_port']}"
    )
    yield client
    client.close()


@pytest.fixture(params=["http", "grpc"])
def either(request, server):
    """(client, its module), once for each protocol."""
    return request.getfixturevalue(request.param), getattr(tritonclient, request.param)


def tensors(module, texts, **more):
    """Inputs of `module` for these prompts and parameters."""
    types = {bool: ("BOOL", bool), int: ("INT32", numpy.int32), float: ("FP32", numpy.float32)}
    data = {"text_input": ("BYTES", numpy.array([t.encode() for t in texts], dtype=object))}
    for name, value in more.items():
        if isinstance(value, str):
            data[name] = ("BYTES", numpy.array([value.encode()], dtype=object))
        else:
            datatype, kind = types[type(value)]
            data[name] = (datatype, numpy.array([value], dtype=kind))
    inputs = []
    for name, (datatype, array) in data.items():
        inputs.append(module.InferInput(name, list(array.shape), datatype))
        inputs[-1].set_data_from_numpy(array)
    return inputs


def expected(server, prompt, **more):
    """What the OpenAI API says to the same."""
    status, answer = server.post(
        "/v1/completions", {"model": MODEL, "prompt": prompt, "temperature": 0, **more}
    )
    assert status == 200, answer
    return answer


def texts_of(result, name="text_output"):
    return [text.decode() for text in result.as_numpy(name)]


# ---- Server and models ----


def test_health_and_metadata(either):
    client, _ = either
    assert client.is_server_live() and client.is_server_ready()
    # The models are opened while the server answers already.
    deadline = time.monotonic() + 15
    while not client.is_model_ready(MODEL) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert client.is_model_ready(MODEL) and client.is_model_ready(MODEL, "1")
    assert not client.is_model_ready("nothing")
    metadata = client.get_server_metadata()
    if not isinstance(metadata, dict):
        metadata = {"name": metadata.name, "extensions": list(metadata.extensions)}
    assert metadata["name"] == "terrace" and "binary_tensor_data" in metadata["extensions"]


def test_model_metadata(either):
    client, _ = either
    metadata = client.get_model_metadata(MODEL)
    if isinstance(metadata, dict):
        names = {tensor["name"]: tensor["datatype"] for tensor in metadata["inputs"]}
        outputs = {tensor["name"] for tensor in metadata["outputs"]}
        versions = metadata["versions"]
    else:
        names = {tensor.name: tensor.datatype for tensor in metadata.inputs}
        outputs = {tensor.name for tensor in metadata.outputs}
        versions = list(metadata.versions)
    assert names["text_input"] == "BYTES" and names["max_tokens"] == "INT32"
    assert names["temperature"] == "FP32" and {"text_output", "log_probs"} <= outputs
    assert versions == ["1"]
    with pytest.raises(InferenceServerException, match="nothing"):
        client.get_model_metadata("nothing")


# ---- Inference ----


def test_infer_answers_as_the_openai_api_does(either, server):
    client, module = either
    inputs = tensors(module, [PROMPT], max_tokens=12, temperature=0.0)
    result = client.infer(MODEL, inputs, request_id="r-1")
    answer = expected(server, PROMPT, max_tokens=12)
    assert texts_of(result) == [answer["choices"][0]["text"]]
    assert texts_of(result, "finish_reason") == [answer["choices"][0]["finish_reason"]]
    assert result.as_numpy("completion_tokens").tolist() == [answer["usage"]["completion_tokens"]]
    assert result.as_numpy("prompt_tokens").dtype == numpy.int32
    response = result.get_response()
    assert (response["id"] if isinstance(response, dict) else response.id) == "r-1"


def test_a_batch_of_prompts(either, server):
    client, module = either
    prompts = [PROMPT, "Once", "42 is"]
    result = client.infer(MODEL, tensors(module, prompts, max_tokens=6, temperature=0.0))
    answer = expected(server, prompts, max_tokens=6)
    assert texts_of(result) == [choice["text"] for choice in answer["choices"]]


def test_token_ids_and_log_probs(either, server):
    client, module = either
    _, ids = server.post("/tokenize", {"model": MODEL, "prompt": PROMPT})
    array = numpy.array(ids["tokens"], dtype=numpy.int32)
    inputs = [module.InferInput("input_ids", list(array.shape), "INT32")]
    inputs[0].set_data_from_numpy(array)
    inputs += tensors(module, [PROMPT], max_tokens=5, temperature=0.0)[1:]
    outputs = [module.InferRequestedOutput(n) for n in ("text_output", "log_probs")]
    result = client.infer(MODEL, inputs, outputs=outputs)
    answer = expected(server, PROMPT, max_tokens=5, logprobs=0)
    assert texts_of(result) == [answer["choices"][0]["text"]]
    found = result.as_numpy("log_probs")
    wanted = answer["choices"][0]["logprobs"]["token_logprobs"]
    assert found.dtype == numpy.float32 and numpy.allclose(found, wanted, atol=1e-6)
    assert result.as_numpy("finish_reason") is None


def test_sampling_parameters_as_json(either, server):
    client, module = either
    settings = json.dumps({"max_tokens": 7, "temperature": 0, "stop": ["zzz"]})
    result = client.infer(MODEL, tensors(module, [PROMPT], sampling_parameters=settings))
    assert texts_of(result) == [expected(server, PROMPT, max_tokens=7)["choices"][0]["text"]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: i[0].set_shape([2]), "elements"),
        (lambda i: setattr(i[0], "_name", "txt"), "txt"),
    ],
)
def test_bad_tensors_are_refused_by_name_http(http, change, message):
    inputs = tensors(tritonclient.http, [PROMPT], max_tokens=3)
    change(inputs)
    with pytest.raises(InferenceServerException, match=message) as raised:
        http.infer(MODEL, inputs)
    assert raised.value.status() == "400"


def test_values_out_of_range_and_unknown_models_are_refused(either):
    client, module = either
    with pytest.raises(InferenceServerException, match="temperature"):
        client.infer(MODEL, tensors(module, [PROMPT], temperature=9.0))
    with pytest.raises(InferenceServerException, match="nothing"):
        client.infer("nothing", tensors(module, [PROMPT]))
    with pytest.raises(InferenceServerException, match="version 7"):
        client.infer(MODEL, tensors(module, [PROMPT]), model_version="7")
    outputs = [module.InferRequestedOutput("sense")]
    with pytest.raises(InferenceServerException, match="sense"):
        client.infer(MODEL, tensors(module, [PROMPT]), outputs=outputs)


def test_http_compression_both_ways(http, server):
    inputs = tensors(tritonclient.http, [PROMPT * 50], max_tokens=4, temperature=0.0)
    plain = http.infer(MODEL, inputs)
    for algorithm in ("gzip", "deflate"):
        packed = http.infer(
            MODEL,
            inputs,
            request_compression_algorithm=algorithm,
            response_compression_algorithm=algorithm,
        )
        assert texts_of(packed) == texts_of(plain)


def test_http_json_tensors(server):
    body = {
        "inputs": [
            {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [[PROMPT]]},
            {"name": "max_tokens", "datatype": "INT32", "shape": [1], "data": [5]},
            {"name": "temperature", "datatype": "FP32", "shape": [1], "data": [0]},
        ]
    }
    status, answer = server.post(f"/v2/models/{MODEL}/versions/1/infer", body)
    assert status == 200, answer
    outputs = {output["name"]: output for output in answer["outputs"]}
    wanted = expected(server, PROMPT, max_tokens=5)["choices"][0]["text"]
    assert outputs["text_output"]["data"] == [wanted] and answer["model_version"] == "1"
    status, answer = server.post(f"/v2/models/{MODEL}/infer", {"inputs": 3})
    assert status == 400 and "inputs" in answer["error"]


# ---- generate ----


def test_generate_and_its_stream(server):
    body = {"text_input": PROMPT, "parameters": {"max_tokens": 9, "temperature": 0}}
    wanted = expected(server, PROMPT, max_tokens=9)["choices"][0]["text"]
    status, answer = server.post(f"/v2/models/{MODEL}/generate", body)
    assert status == 200 and answer["text_output"] == wanted
    status, headers, text = server.request("POST", f"/v2/models/{MODEL}/generate_stream", body)
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    events = [json.loads(line[6:]) for line in text.decode().split("\n\n") if line]
    assert len(events) > 3 and "".join(e["text_output"] for e in events) == wanted
    assert events[-1]["completion_tokens"] == 9


def test_grpc_stream(grpc, server):
    answers = queue.Queue()
    grpc.start_stream(callback=lambda result, error: answers.put((result, error)))
    prompts = [PROMPT, "Once"]
    for number, prompt in enumerate(prompts):
        inputs = tensors(tritonclient.grpc, [prompt], max_tokens=8, temperature=0.0, stream=True)
        grpc.async_stream_infer(
            MODEL, inputs, request_id=str(number), enable_empty_final_response=True
        )
    texts, finals = ["", ""], 0
    while finals < 2:
        result, error = answers.get(timeout=30)
        assert error is None
        response = result.get_response()
        if response.parameters["triton_final_response"].bool_param:
            finals += 1
        else:
            texts[int(response.id)] += texts_of(result)[0]
    # An error does not end the stream.
    grpc.async_stream_infer("nothing", tensors(tritonclient.grpc, [PROMPT]))
    assert "nothing" in str(answers.get(timeout=30)[1])
    grpc.async_stream_infer(MODEL, tensors(tritonclient.grpc, [PROMPT], max_tokens=1))
    assert answers.get(timeout=30)[1] is None
    grpc.stop_stream()
    wanted = [expected(server, p, max_tokens=8)["choices"][0]["text"] for p in prompts]
    assert texts == wanted


def test_a_cancelled_grpc_call_stops_the_work(grpc, server):
    before = server.metric("terrace_generated_tokens_total")
    with pytest.raises(InferenceServerException, match="Deadline"):
        grpc.infer(
            MODEL,
            tensors(
                tritonclient.grpc,
                [PROMPT] * 16,
                sampling_parameters=json.dumps(
                    {"max_tokens": 1900, "logit_bias": {str(END): -100}}
                ),
            ),
            client_timeout=0.02,
        )
    assert wait_until_still(server) - before < 16 * 1900


# ---- Repository and statistics ----


def test_repository_and_statistics(either):
    client, module = either
    index = client.get_model_repository_index()
    entries = index if isinstance(index, list) else [{"name": m.name} for m in index.models]
    assert {entry["name"] for entry in entries} == set(TINY)
    name = "tiny-qwen3"
    client.unload_model(name)
    assert not client.is_model_ready(name)
    with pytest.raises(InferenceServerException, match="unloaded"):
        client.infer(name, tensors(module, [PROMPT], max_tokens=2))
    client.load_model(name)
    assert client.is_model_ready(name)
    client.infer(name, tensors(module, [PROMPT], max_tokens=2))
    with pytest.raises(InferenceServerException, match="nothing"):
        client.load_model("nothing")
    statistics = client.get_inference_statistics(name)
    if isinstance(statistics, dict):
        line = statistics["model_stats"][0]
        assert line["inference_stats"]["success"]["count"] >= 1
    else:
        assert statistics.model_stats[0].inference_stats.success.count >= 1
