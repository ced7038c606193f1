"""Vectors of texts from an encoder (the checkpoint tests/data/checkpoints/bert, whose states come
from the reference library) and from models that generate, as the openai client asks for them."""

import concurrent.futures
import json
import math
import shutil
import struct

import openai
import pytest
from conftest import ROOT, TINY, openai_client

BERT = ROOT / "tests" / "data" / "checkpoints" / "bert"
LETTERS = "abcdefghijklmnopqrstuvwxyz"
CLS, SEP = 2, 3
CONTEXT = 64


def tokenizer_json():
    """WordPiece over single letters, with [CLS] and [SEP] around each text."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"] + list(LETTERS) + ["##" + c for c in LETTERS]
    special = [
        {"id": i, "content": words[i], "special": True, "normalized": False, "lstrip": False,
         "rstrip": False, "single_word": False}
        for i in range(4)
    ]
    around = [{"SpecialToken": {"id": word, "type_id": 0}} for word in ("[CLS]", "[SEP]")]
    return {
        "version": "1.0",
        "added_tokens": special,
        "normalizer": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                       "strip_accents": None, "lowercase": True},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [around[0], {"Sequence": {"id": "A", "type_id": 0}}, around[1]],
            "pair": [],
            "special_tokens": {
                word: {"id": word, "ids": [i], "tokens": [word]}
                for word, i in (("[CLS]", CLS), ("[SEP]", SEP))
            },
        },
        "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##",
                  "max_input_chars_per_word": 100,
                  "vocab": {word: i for i, word in enumerate(words)}},
    }


def word_ids(word):
    first, rest = 4 + LETTERS.index(word[0]), [4 + 26 + LETTERS.index(c) for c in word[1:]]
    return [first] + rest


@pytest.fixture(scope="module")
def server(module_servers, tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert") / "bert"
    shutil.copytree(BERT, folder)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    return module_servers.start(
        {"bert": str(folder), "tiny-qwen3": str(TINY["tiny-qwen3"])},
        memory={"device_budget": "96MiB"},
    )


def embed(client, model="bert", **fields):
    return [each.embedding for each in client.embeddings.create(model=model, **fields).data]


def unit(vector):
    length = math.sqrt(sum(x * x for x in vector))
    return [x / length for x in vector]


def test_is_what_the_reference_library_gives(server):
    tokens = json.loads((BERT / "tokens.json").read_text())["tokens"]
    raw = (BERT / "logits.f32").read_bytes()
    values = struct.unpack(f"<{len(raw) // 4}f", raw)
    width = len(values) // len(tokens)
    mean = [sum(values[t * width + i] for t in range(len(tokens))) for i in range(width)]
    (vector,) = embed(openai_client(server), input=tokens)
    # As in tests/engine/encoder_test.cc: activations in BF16, ten operators.
    assert vector == pytest.approx(unit(mean), abs=2**-9 * math.sqrt(10))


def test_texts_are_their_tokens_between_start_and_end(server):
    client = openai_client(server)
    ids = [CLS] + word_ids("deep") + word_ids("sea") + [SEP]
    _, tokenized = server.post("/tokenize", {"model": "bert", "prompt": "Deep sea"})
    assert tokenized["tokens"] in (ids, ids[:-1])  # an end is no part of a prompt
    answer = client.embeddings.create(model="bert", input=["Deep sea", "x"])
    assert answer.usage.prompt_tokens == len(ids) + 3
    assert answer.data[0].embedding == pytest.approx(embed(client, input=ids)[0], abs=1e-6)
    plain = client.embeddings.create(model="bert", input="x", encoding_format="float")
    assert answer.data[1].embedding == pytest.approx(plain.data[0].embedding, abs=1e-6)
    short = embed(client, input="Deep sea", dimensions=16)[0]
    assert short == pytest.approx(unit(answer.data[0].embedding[:16]), abs=1e-6)


def test_reranks_by_likeness(server):
    body = {"model": "bert", "query": "deep sea", "documents": ["zzz", "deep sea", {"text": "q"}]}
    status, answer = server.post("/v1/rerank", body)
    assert status == 200, answer
    scores = {each["index"]: each["relevance_score"] for each in answer["results"]}
    assert answer["results"][0]["index"] == 1 and scores[1] == pytest.approx(1, abs=1e-5)
    vectors = embed(openai_client(server), input=["deep sea", "zzz", "q"])
    for index, vector in ((0, vectors[1]), (2, vectors[2])):
        cosine = sum(a * b for a, b in zip(vectors[0], vector))
        assert scores[index] == pytest.approx(cosine, abs=1e-5)


def test_limits_are_the_context_and_what_an_encoder_does(server):
    client = openai_client(server)
    assert len(embed(client, input=[5] * CONTEXT)[0]) == 64
    with pytest.raises(openai.BadRequestError) as caught:
        embed(client, input=[5] * (CONTEXT + 1))
    assert caught.value.code == "context_length_exceeded" and "1 to 64" in str(caught.value)
    with pytest.raises(openai.BadRequestError) as caught:
        embed(client, input="x", dimensions=65)
    assert caught.value.param == "dimensions"
    with pytest.raises(openai.BadRequestError) as caught:
        client.completions.create(model="bert", prompt=[CLS, 5], max_tokens=3)
    assert "/v1/embeddings" in str(caught.value)


@pytest.mark.parametrize("model", ["bert", "tiny-qwen3"])
def test_a_vector_is_the_same_alone_and_beside_others(server, model):
    """To the bit, in the default mode too: beside answers of the same model, in one request with
    other texts, and in many requests at once."""
    client = openai_client(server)
    texts = [LETTERS[i % 26] * (1 + i % 40) for i in range(60)]
    alone = [embed(client, model, input=text)[0] for text in texts[:12]]
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        chats = [
            pool.submit(
                client.completions.create, model="tiny-qwen3", prompt=[9, 8, 7], max_tokens=40
            )
            for _ in range(4)
        ]
        together = list(pool.map(lambda text: embed(client, model, input=text)[0], texts))
        assert all(chat.result().usage.completion_tokens > 0 for chat in chats)
    assert alone == together[:12] == embed(client, model, input=texts)[:12]


def test_a_reranker_is_asked_and_its_answers_weighed(servers):
    """The tiny model's vocabulary spells yes and no in a token each or not at all; if not, it says
    in the log that it ranks by vectors."""
    server = servers.start(
        {"tiny-reranker": str(TINY["tiny-qwen3"]),
         "plain": {"source": str(TINY["tiny-qwen3"]), "rerank": "vectors"}},
        memory={"device_budget": "64MiB"},
    )
    body = {"query": "deep sea", "documents": ["deep sea", "zzz"], "instruction": "Find the same"}
    scores = {}
    for name in ("tiny-reranker", "plain"):
        status, answer = server.post("/v1/rerank", body | {"model": name})
        assert status == 200, answer
        scores[name] = [each["relevance_score"] for each in answer["results"]]
        assert scores[name] == sorted(scores[name], reverse=True)
    _, found = server.post(
        "/tokenize", {"model": "plain", "prompt": "yes", "add_special_tokens": False}
    )
    if found["count"] == 1:
        assert scores["tiny-reranker"] != scores["plain"]
        assert all(0 <= score <= 1 for score in scores["tiny-reranker"])
    else:
        assert scores["tiny-reranker"] == pytest.approx(scores["plain"], abs=1e-6)
        assert "ranks by its vectors" in server.log()
