"""Folders of checkpoints as a user has them who fetched them: hard cases A07 and A10 over HTTP."""

import json
import shutil
import struct
import time

from conftest import ROOT
from test_embeddings import tokenizer_json

GRANITE = ROOT / "tests" / "data" / "checkpoints" / "granite"
ASK = {"prompt": [5, 6, 7], "max_tokens": 3, "temperature": 0}


def shard_names(count):
    return [f"model-{i + 1:05}-of-{count:05}.safetensors" for i in range(count)]


def write_shard(path, tensors):
    header, data = {}, b""
    for name, (entry, raw) in tensors.items():
        header[name] = entry | {"data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def checkpoint(folder, count=3, **config):
    """A copy of the small checkpoint in `count` shards with an index; `config` overrides, None
    takes a key out."""
    folder.mkdir()
    settings = json.loads((GRANITE / "config.json").read_text()) | config
    settings = {key: value for key, value in settings.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(settings))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer_json()))
    raw = (GRANITE / "model.safetensors").read_bytes()
    (size,) = struct.unpack_from("<Q", raw)
    header = json.loads(raw[8 : 8 + size])
    header.pop("__metadata__", None)
    shards, places = [{} for _ in range(count)], {}
    for i, (name, entry) in enumerate(sorted(header.items())):
        begin, end = (8 + size + offset for offset in entry.pop("data_offsets"))
        shards[i % count][name] = (entry, raw[begin:end])
        places[name] = shard_names(count)[i % count]
    for name, tensors in zip(shard_names(count), shards):
        write_shard(folder / name, tensors)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    return folder, shards


def states(server):
    _, body = server.get("/v1/models")
    return {model["id"]: model["state"] for model in json.loads(body)["data"]}


def test_a07_an_incomplete_download_is_never_served(servers, tmp_path):
    whole, _ = checkpoint(tmp_path / "whole")
    cut, _ = checkpoint(tmp_path / "cut")
    less, shards = checkpoint(tmp_path / "less")
    missing = cut / shard_names(3)[1]
    missing.rename(tmp_path / "kept")
    gone = sorted(shards[2])[-1]
    write_shard(less / shard_names(3)[2], {n: t for n, t in shards[2].items() if n != gone})
    server = servers.start(
        {path.name: str(path) for path in (whole, cut, less)}, memory={"device_budget": "64MiB"}
    )
    status, answer = server.post("/v1/completions", ASK | {"model": "whole"})
    assert status == 200, answer
    for name, word in (("cut", missing.name), ("less", gone)):
        status, refused = server.post("/v1/completions", ASK | {"model": name})
        assert status == 503 and word in refused["error"]["message"], refused
        assert "incomplete" in refused["error"]["message"], refused
        assert states(server)[name] == "failed"
    assert states(server)["whole"] == "ready"
    # What was missing has come: it is served, and answers as the whole one does.
    shutil.copy(tmp_path / "kept", missing)
    deadline = time.monotonic() + 30
    status = 0
    while status != 200 and time.monotonic() < deadline:  # a failure is told again for a moment
        status, mended = server.post("/v1/completions", ASK | {"model": "cut"})
        time.sleep(0.1)
    assert status == 200 and mended["choices"] == answer["choices"], mended


def test_a10_a_default_that_is_taken_is_logged(servers, tmp_path):
    folder, _ = checkpoint(tmp_path / "plain", count=1, rope_theta=None, rope_parameters=None)
    server = servers.start({"plain": str(folder)}, memory={"device_budget": "64MiB"})
    assert server.post("/v1/completions", ASK | {"model": "plain"})[0] == 200
    assert "config.json has no rope_theta; 10000" in server.log()


def test_a10_a_scaling_that_is_not_known_is_refused(servers, tmp_path):
    scaling = {"rope_type": "spiral", "factor": 2.0}
    folder, _ = checkpoint(tmp_path / "odd", rope_scaling=scaling, rope_parameters=None)
    good, _ = checkpoint(tmp_path / "good")
    server = servers.start(
        {"odd": str(folder), "good": str(good)}, memory={"device_budget": "64MiB"}
    )
    status, answer = server.post("/v1/completions", ASK | {"model": "odd"})
    assert status == 503 and "'spiral'" in answer["error"]["message"], answer
