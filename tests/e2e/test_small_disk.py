"""Commands that run out of disk (case A09), on a real small file system of their own."""

import hashlib
import shutil
import subprocess

import pytest
from conftest import GOLDEN, ROOT
from server_process import default_binary

MODEL = GOLDEN / "arch" / "qwen3.gguf"
CHECKPOINT = ROOT / "tests" / "data" / "checkpoints" / "granite"


def on_small_disk(folder, size, command):
    """(status, errors, names left) of `command`, in which OUT is a folder of a disk of `size`."""
    script = (
        f'mount -t tmpfs -o size={size} none "$0" && '
        '{ "$@" >/dev/null 2>"$0.errors"; status=$?; ls -A "$0"; exit $status; }'
    )
    disk = folder / "disk"
    disk.mkdir()
    words = [str(word).replace("OUT", str(disk)) for word in command]
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", script, str(disk)] + words,
        capture_output=True,
        text=True,
        timeout=120,
    )
    errors = folder / "disk.errors"
    if not errors.exists():
        pytest.skip(f"no small file system can be mounted here: {done.stderr.strip()}")
    return done.returncode, errors.read_text(), done.stdout.split()


def digest(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is not installed")
@pytest.mark.parametrize(
    "command, source",
    [
        (["quantize", MODEL, "OUT/out.gguf", "--format", "Q8_0"], MODEL),
        (["convert", CHECKPOINT, "OUT/out.gguf"], CHECKPOINT / "model.safetensors"),
    ],
    ids=["quantize", "convert"],
)
def test_a09_a_full_disk_is_an_error_that_leaves_nothing(tmp_path, command, source):
    whole = tmp_path / "whole"
    whole.mkdir()
    words = [default_binary()] + command
    subprocess.run([str(word).replace("OUT", str(whole)) for word in words], check=True)
    room = (whole / "out.gguf").stat().st_size // 2 // 4096 * 4096
    before = digest(source)
    status, errors, left = on_small_disk(tmp_path, room, words)
    assert status != 0
    assert "No space left on device" in errors and "out.gguf" in errors, errors
    assert left == []
    assert digest(source) == before
