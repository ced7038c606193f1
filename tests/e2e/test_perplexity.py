"""What computing in a format costs, on a real model and a text of the public domain ("Alice's
Adventures in Wonderland", 1865): formats with activations rounded to int8 against float32
arithmetic over exactly the same weights."""

import json
import os
import pathlib
import subprocess

import pytest

import models
import server_process

TEXT = pathlib.Path(__file__).resolve().parent.parent / "data" / "text" / "alice.txt"


def _terrace(*arguments):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("TERRACE_")}
    done = subprocess.run(
        [str(server_process.default_binary()), *map(str, arguments), "--json"],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _perplexity(path, folder):
    # Float weights are computed in float32 throughout: that is the reference.
    row = _terrace("verify", "perplexity", path, "--text", TEXT, "--storage.disk.path", folder)
    return row["perplexity"]


def _reference(path, folder):
    row = _terrace(
        "verify", "perplexity", path, "--text", TEXT, "--device.deterministic", "true",
        "--storage.disk.path", folder,
    )
    assert row["tokens"] > 600
    return row["perplexity"]


@pytest.fixture(scope="module")
def smollm2():
    try:
        return models.fetch("smollm2-135m")
    except models.FetchError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def floats(smollm2, tmp_path_factory):
    """The real weights as float32, and their perplexity."""
    folder = tmp_path_factory.mktemp("floats")
    path = folder / "f32.gguf"
    _terrace("quantize", smollm2, path, "--format", "F32")
    yield path, _reference(path, folder)
    path.unlink()


def test_the_real_file_is_as_good_as_its_weights_in_float32(smollm2, floats, tmp_path):
    _, reference = floats
    assert 5 < reference < 40  # A model that is read wrongly has thousands.
    assert abs(_perplexity(smollm2, tmp_path) / reference - 1) < 0.005


def test_q8_0_is_as_good_as_float32(floats, tmp_path):
    path, reference = floats
    _terrace("quantize", path, tmp_path / "q8.gguf", "--format", "Q8_0")
    assert abs(_perplexity(tmp_path / "q8.gguf", tmp_path) / reference - 1) < 0.005


@pytest.mark.parametrize("name", ["Q4_0", "Q4_K"])
def test_four_bits_cost_what_their_weights_cost(name, floats, tmp_path):
    path, reference = floats
    _terrace("quantize", path, tmp_path / "q4.gguf", "--format", name)
    _terrace("quantize", tmp_path / "q4.gguf", tmp_path / "exact.gguf", "--format", "F32")
    exact = _reference(tmp_path / "exact.gguf", tmp_path)
    (tmp_path / "exact.gguf").unlink()
    assert exact > reference  # The format does cost something: the comparison is not empty.
    assert _perplexity(tmp_path / "q4.gguf", tmp_path) < exact * 1.005
