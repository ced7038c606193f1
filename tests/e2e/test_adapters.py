"""LoRA adapters by the name of their entry, beside their base, asked for by the openai client."""

import concurrent.futures
import json
import random
import struct
import subprocess

import openai
import pytest
from conftest import TINY, openai_client
from server_process import free_port

BASE = "tiny-qwen2"
RANK = 4
# The matrices of the golden qwen2, [out, in].
SHAPES = {
    "self_attn.q_proj": (128, 128),
    "self_attn.v_proj": (64, 128),
    "mlp.down_proj": (128, 256),
}


def write_adapter(folder, seed, size=0.3, shapes=SHAPES, **config):
    """A PEFT folder for the first two layers; with `size` 0 one that changes nothing."""
    folder.mkdir()
    values = random.Random(seed)
    header, data = {}, b""

    def add(name, rows, cols, scale):
        nonlocal data
        numbers = [values.uniform(-scale, scale) for _ in range(rows * cols)]
        begin = len(data)
        data += struct.pack(f"<{rows * cols}f", *numbers)
        header[name] = {"dtype": "F32", "shape": [rows, cols], "data_offsets": [begin, len(data)]}

    for layer in range(2):
        for module, (out, width) in shapes.items():
            name = f"base_model.model.model.layers.{layer}.{module}"
            add(f"{name}.lora_A.weight", RANK, width, 0.3)
            add(f"{name}.lora_B.weight", out, RANK, size)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    settings = {"peft_type": "LORA", "r": RANK, "lora_alpha": 8, "bias": "none"} | config
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return str(folder)


@pytest.fixture(scope="module")
def server(module_servers, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapters")
    entries = {BASE: str(TINY[BASE])}
    for name, options in {
        "first": {"seed": 1},
        "second": {"seed": 2},
        "nothing": {"seed": 3, "size": 0},
        "misfit": {"seed": 4, "shapes": {"self_attn.q_proj": (64, 128)}},
        "dora": {"seed": 5, "use_dora": True},
    }.items():
        entries[name] = {"source": write_adapter(folder / name, **options), "base": BASE}
    return module_servers.start(
        entries, memory={"device_budget": "96MiB"}, server={"admin_port": free_port()}
    )


def say(client, model, text="Hello there", stream=False):
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": text}],
        temperature=0,
        max_tokens=24,
        logit_bias={"507": -100},
        stream=stream,
    )
    if not stream:
        assert answer.model == model
        return answer.choices[0].message.content
    return "".join(chunk.choices[0].delta.content or "" for chunk in answer)


def test_each_answers_by_its_name(server):
    client = openai_client(server)
    names = [model.id for model in client.models.list()]
    assert {BASE, "first", "second", "nothing"} <= set(names)
    base, first, second = (say(client, name) for name in (BASE, "first", "second"))
    assert len({base, first, second}) == 3
    assert say(client, "nothing") == base
    assert say(client, "first", stream=True) == first
    # Again, with all of KV kept from before, and then many at once.
    assert [say(client, name) for name in (BASE, "first", "second")] == [base, first, second]
    wanted = [(BASE, base), ("first", first), ("second", second), ("nothing", base)] * 4
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda each: say(client, each[0]), wanted))
    # Rows of a batch may round differently, but an answer never is another adapter's.
    for (name, text), answer in zip(wanted, answers):
        others = {base, first, second} - {text}
        assert answer not in others, name


def test_completions_and_embeddings_too(server):
    client = openai_client(server)
    texts = {
        name: client.completions.create(
            model=name, prompt=[5, 6, 7, 8], temperature=0, max_tokens=16
        ).choices[0].text
        for name in (BASE, "first")
    }
    assert texts[BASE] != texts["first"]
    vectors = [
        client.embeddings.create(model=name, input="a text").data[0].embedding
        for name in (BASE, "nothing", "first")
    ]
    assert vectors[0] == pytest.approx(vectors[1], abs=1e-5)
    assert vectors[0] != pytest.approx(vectors[2], abs=1e-2)


def test_bytes_are_booked_to_the_adapter(server):
    client = openai_client(server)
    say(client, "first")
    status, text = server.get("/admin/state", port=server.config["server"]["admin_port"])
    assert status == 200
    device = json.loads(text)["tiers"][0]
    booked = [line for line in device["lines"] if line["model"] == "first"]
    # Two layers of pairs in F32; packing may fill A's rows up to 16, segments are whole pages.
    least = 2 * sum(RANK * (out + width) * 4 for out, width in SHAPES.values())
    most = 2 * sum((RANK * out + 16 * width) * 4 for out, width in SHAPES.values())
    assert least <= sum(line["bytes"] for line in booked) <= most + 4 * 4096 + 6 * 64, booked


def test_what_does_not_fit_says_so_and_leaves_the_others(server):
    client = openai_client(server)
    for name, word in (("misfit", "the base's is [128, 128]"), ("dora", "use_dora")):
        with pytest.raises(openai.APIStatusError) as caught:
            say(client, name)
        assert word in str(caught.value), caught.value
    assert say(client, "nothing") == say(client, BASE)


def test_plan_and_run_know_adapters(server):
    def terrace(*words):
        return subprocess.run(
            [str(server.binary), *words, "--config", str(server.folder / "terrace.yaml")],
            capture_output=True, text=True, timeout=60,
        )

    # By the adapter's name its base is planned, with the adapter's bytes as the ledger books them.
    done = terrace("plan", "first", "--json", "--context", "256")
    assert done.returncode == 0, done.stderr
    (need,) = json.loads(done.stdout)["models"]
    say(openai_client(server), "first")
    _, text = server.get("/admin/state", port=server.config["server"]["admin_port"])
    lines = json.loads(text)["tiers"][0]["lines"]
    booked = sum(line["bytes"] for line in lines if line["model"] == "first")
    assert need["model"] == BASE and need["adapters"] == ["first"]
    assert need["adapter_bytes"] == booked
    done = terrace("plan", "first", "nothing")
    assert "with first, nothing" in done.stdout, done.stderr
    # What cannot be applied is told as it is when it is served.
    done = terrace("plan", "misfit")
    assert done.returncode != 0 and "the base's is [128, 128]" in done.stderr
    answers = set()
    for name in (BASE, "first", "nothing"):
        done = terrace("run", name, "Hello there", "--temperature", "0", "--max-tokens", "24")
        assert done.returncode == 0, done.stderr
        answers.add((done.stdout, name == "first"))
    assert len(answers) == 2, answers
    done = terrace("run", "misfit", "Hello")
    assert done.returncode != 0 and "the base's is [128, 128]" in done.stderr
