"""The steps of the Dockerfile, walked through without an engine that builds images: what its build
stage copies and calls is there, and what its last stage holds runs as its user, with its
environment, and answers its health check.
"""

import fnmatch
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import tempfile
import time

import pytest
import server_process
from conftest import ROOT, TINY
from test_hard_cases import MODEL, SHORT

CHAT = "/v1/chat/completions"
TEXT = (ROOT / "deploy" / "container" / "Dockerfile").read_text()


def instructions():
    """[(instruction, rest)] in order, lines joined."""
    joined = re.sub(r"\\\n", " ", re.sub(r"^#.*\n", "", TEXT, flags=re.M))
    return [tuple(line.split(None, 1)) for line in joined.splitlines() if line.strip()]


def last_stage():
    found = instructions()
    start = max(i for i, (name, _) in enumerate(found) if name == "FROM")
    return found[start:]


def one(name):
    (rest,) = [rest for each, rest in last_stage() if each == name]
    return rest


def test_what_is_copied_is_a_checkout_without_what_was_made_in_it():
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    ignored = [
        line
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line and not line.startswith("#")
    ]

    def is_ignored(path):
        parts = pathlib.PurePosixPath(path).parts
        for pattern in ignored:
            tail = pattern.removeprefix("**/")
            places = parts if tail != pattern else parts[:1]
            if any(fnmatch.fnmatch(part, tail) for part in places):
                return True
        return False

    listed = subprocess.check_output(["git", "ls-files"], cwd=ROOT, text=True).splitlines()
    assert not [path for path in listed if is_ignored(path)]
    # A configured build folder names paths of the machine that it was made on.
    for path in ("build/release/CMakeCache.txt", ".venv/bin/python", ".git/HEAD",
                 "scripts/__pycache__/x.pyc"):
        assert is_ignored(path), path


def test_the_build_stage_calls_what_there_is():
    (run,) = [rest for name, rest in instructions()[:4] if name == "RUN"]
    setup, build, install = (part.split() for part in run.split("&&"))
    text = (ROOT / "dev").read_text()
    assert setup[:2] == ["./dev", "setup"] and build[:2] == ["./dev", "build"]
    assert os.access(ROOT / "dev", os.X_OK)
    for group in setup[2:]:
        assert f"packages_{group}=(" in text, group
    presets = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
    folders = {each["name"]: each.get("binaryDir", "") for each in presets}
    assert build[2] in folders
    assert install[:2] == ["cmake", "--install"] and install[2] == f"build/{build[2]}"
    prefix = install[install.index("--prefix") + 1]
    assert f"COPY --from=build {prefix} /usr" in TEXT


def environment():
    return dict(part.split("=", 1) for part in one("ENV").split())


@pytest.fixture
def image(tmp_path):
    """A folder that the image's user can read: the installed program, a model, its own store."""
    build = server_process.default_binary().parent.parent
    if shutil.which("cmake") is None or not (build / "cmake_install.cmake").exists():
        pytest.skip("the program was not built here")
    if os.getuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("only root becomes the image's user")
    folder = pathlib.Path(tempfile.mkdtemp(prefix="terrace-image-"))
    folder.chmod(0o755)
    command = ["cmake", "--install", str(build), "--strip", "--prefix", str(folder / "usr")]
    subprocess.run(command, check=True, capture_output=True)
    shutil.copy(TINY[MODEL], folder / "model.gguf")
    user = int(one("USER").split(":")[0])
    (folder / "store").mkdir()
    os.chown(folder / "store", user, user)
    yield folder
    shutil.rmtree(folder)


def test_what_the_image_holds_runs_as_its_user(image):
    user, group = one("USER").split(":")
    store = environment()["TERRACE_STORAGE_DISK_PATH"]
    assert store == one("VOLUME") and f"--home-dir {store}" in TEXT
    ports = [server_process.free_port() for _ in range(4)]
    keys = ("PORT", "GRPC_PORT", "METRICS_PORT", "ADMIN_PORT")
    # As in the image, but for where the store lies and which ports are free on this machine.
    variables = environment() | {"TERRACE_STORAGE_DISK_PATH": str(image / "store")}
    variables |= {f"TERRACE_SERVER_{key}": str(port) for key, port in zip(keys, ports)}
    variables |= {
        "TERRACE_MODELS": f"{MODEL}={image / 'model.gguf'}",
        "TERRACE_MEMORY_DEVICE_BUDGET": "64MiB",
        "TERRACE_SERVER_SUPERVISE": "on",
    }
    entry = json.loads(one("ENTRYPOINT"))
    assert entry == ["/usr/bin/terrace"]
    program = str(image / entry[0].lstrip("/"))
    as_user = ["setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"]
    as_user += ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]

    def run(*command, **options):
        return subprocess.run(
            [*as_user, *command], env=variables, cwd="/", capture_output=True, text=True, **options
        )

    health = json.loads(one("HEALTHCHECK").split("CMD", 1)[1])
    health = [part.replace("/8000", f"/{ports[0]}") for part in health]
    assert run(*health).returncode != 0, "nobody is there"
    log = image / "log"
    with open(log, "wb") as out:
        server = subprocess.Popen(
            [*as_user, program, *json.loads(one("CMD"))], env=variables, cwd="/", stdout=out,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        deadline = time.monotonic() + 30
        while run(*health).returncode != 0:
            assert server.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        status = pathlib.Path(f"/proc/{server.pid}/status").read_text()
        assert re.search(r"^Uid:\s+(\d+)", status, re.M)[1] == user
        assert re.search(r"^CapEff:\s+0+$", status, re.M)
        # It listens to all, so that nobody is answered without a key.
        asked = ["curl", "-s", "-o", "/dev/null", "-w", "%{http_code}", "--data", json.dumps(SHORT)]
        asked += ["--retry", "0", f"http://127.0.0.1:{ports[0]}{CHAT}"]
        assert run(*asked).stdout == "401"
        added = run(program, "key", "add", "ops", "--json")
        assert added.returncode == 0, added.stderr
        key = json.loads(added.stdout)["key"]
        deadline = time.monotonic() + 30
        while run(*asked, "-H", f"Authorization: Bearer {key}").stdout != "200":
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        scraped = run("curl", "-s", f"http://127.0.0.1:{ports[2]}/metrics")
        assert "terrace_requests_total" in scraped.stdout, "Prometheus needs no key"
        assert (image / "store" / "keys.json").stat().st_uid == int(user)
        server.send_signal(signal.SIGTERM)
        assert server.wait(40) == 0, log.read_text()
        assert run(*health).returncode != 0
    finally:
        if server.poll() is None:
            server.kill()
            server.wait()
