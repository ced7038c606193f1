"""Commands that run out of disk (case A09), on a real small file system of their own."""

import hashlib
import os
import shutil
import subprocess

import pytest
from conftest import GOLDEN, PROMPT, ROOT, make_model
from server_process import ServerProcess, default_binary
from test_crash import ask, wait_for

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


MIB = 1 << 20


@pytest.fixture
def server_on_small_disk(tmp_path):
    """Makes a server whose store is a file system of its own; skips where none can be mounted."""
    started = []

    def make(size, models, **config):
        disk = tmp_path / "disk"
        disk.mkdir()
        space = ["unshare", "--user", "--map-root-user", "--mount"]
        mount = f'mount -t tmpfs -o size={size} none "{disk}"'
        probe = subprocess.run(space + ["sh", "-c", mount], capture_output=True, text=True)
        if probe.returncode != 0:
            pytest.skip(f"no small file system can be mounted here: {probe.stderr.strip()}")
        config["storage"] = {"disk": {"path": str(disk)}}
        config["models"] = [{"name": name, "source": str(path)} for name, path in models.items()]
        launcher = space + ["sh", "-c", f'{mount} && exec "$0" "$@"']
        started.append(ServerProcess(config, tmp_path / "server", launcher=launcher))
        # The disk as the server sees it, which is in no other process's view.
        return started[0].start(), f"/proc/{started[0].pid}/root{disk}"

    yield make
    for server in started:
        server.stop()


@pytest.mark.skipif(shutil.which("unshare") is None, reason="unshare is not installed")
def test_a_disk_of_200_mb_fills_up_and_serving_goes_on(server_on_small_disk, tmp_path):
    models = {f"m{i}": make_model("small", i, tmp_path) for i in range(1, 13)}
    size = models["m1"].stat().st_size
    total = 200 * MIB
    assert size * len(models) > total + size, "they do not all fit as images"
    server, disk = server_on_small_disk(
        total, models, memory={"device_budget": f"{2 * size // MIB + 14}MiB"}
    )
    first = {}
    for turn in range(2):
        for name in models:
            status, answer = ask(server, name, PROMPT)
            assert status == 200, answer
            text = answer["choices"][0]["text"]
            assert first.setdefault(name, text) == text, f"{name} in turn {turn}"
        if turn == 0:  # images are written meanwhile, until there is no room for one
            wait_for(lambda: "No space left on device" in server.log())
    assert os.statvfs(disk).f_blocks * os.statvfs(disk).f_frsize == total
    left = os.statvfs(disk).f_bavail * os.statvfs(disk).f_frsize
    print(f"{left} bytes are free; images: {os.listdir(disk + '/images')}")
    whole = [name for name in os.listdir(f"{disk}/images") if "." not in name]
    assert 6 <= len(whole) < len(models)
    # Not a byte more: other users fill what is left, and answers still come, also after that.
    with open(f"{disk}/other", "wb", buffering=0) as other:
        with pytest.raises(OSError):
            while True:
                other.write(bytes(MIB))
    for name in models:
        status, answer = ask(server, name, PROMPT)
        assert status == 200 and answer["choices"][0]["text"] == first[name], answer
    os.unlink(f"{disk}/other")
    assert ask(server, "m1", PROMPT)[0] == 200
    assert server.stop() == 0
