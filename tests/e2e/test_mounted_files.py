"""Configuration, keys and certificates as Kubernetes mounts ConfigMaps and Secrets: each file is a
link into `..data`, a link to a folder with a time in its name. A change swaps that link and then
removes the old folder, while no name in the mount itself changes.
"""

import json
import os
import shutil
import subprocess
import threading

import pytest
from conftest import TINY
from test_hard_cases import LONG, MODEL, SHORT
from test_service import CHAT, bearer, make_certificate, peer_name, reloads, until

OTHER = "tiny-qwen3"


class Mount:
    """A folder that is written as the kubelet writes one."""

    def __init__(self, folder):
        self.folder = folder
        self.swaps = 0
        folder.mkdir(parents=True)

    def swap(self, files):
        """All of `files` (name to bytes) at once, in place of those from before."""
        data = self.folder / "..data"
        old = os.readlink(data) if data.is_symlink() else None
        self.swaps += 1
        new = self.folder / f"..2026_12_01_03_00_00.{self.swaps:09}"
        new.mkdir()
        for name, content in files.items():
            (new / name).write_bytes(content)
        (self.folder / "..data_tmp").symlink_to(new.name)
        os.rename(self.folder / "..data_tmp", data)
        for name in files:
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(f"..data/{name}")
        if old:
            shutil.rmtree(self.folder / old)


def as_file(config):
    return {"terrace.yaml": json.dumps(config).encode()}


def run(server, config):
    """Starts the server with a configuration that the test wrote."""
    with open(server.log_path, "ab") as log:
        server.process = subprocess.Popen(
            [str(server.binary), "serve", "--config", str(config)], stdout=log, stderr=log
        )


@pytest.fixture
def mounted(servers):
    """A server that is not started, whose configuration is a ConfigMap's; and the mount."""
    server = servers.start({MODEL: TINY[MODEL]}, memory={"device_budget": "128MiB"}, wait=False)
    mount = Mount(server.folder / "etc")
    mount.swap(as_file(server.config))
    return server, mount


def ready(server):
    try:
        return server.get("/ready")[0] == 200
    except OSError:
        return False


def test_a_swapped_config_map_is_applied_and_a_bad_one_is_not(mounted):
    server, mount = mounted
    run(server, mount.folder / "terrace.yaml")
    assert until(lambda: ready(server)), server.log()
    answers = []
    streamer = threading.Thread(
        target=lambda: answers.append(server.stream(CHAT, LONG | {"n": 16}))
    )
    streamer.start()
    good = server.config
    both = good["models"] + [{"name": "second", "source": str(TINY[OTHER])}]
    mount.swap(as_file(good | {"models": both}))
    assert until(lambda: server.post(CHAT, SHORT | {"model": "second"})[0] == 200), server.log()
    assert reloads(server, "ok") == 1 and reloads(server, "error") == 0
    mount.swap(as_file(good | {"modells": []}))
    assert until(lambda: reloads(server, "error") == 1), server.log()
    assert server.post(CHAT, SHORT | {"model": "second"})[0] == 200
    # Also if the file goes from the map, as when its key is renamed.
    mount.swap({"other.yaml": b""})
    assert server.post(CHAT, SHORT | {"model": "second"})[0] == 200
    mount.swap(as_file(good))
    assert until(lambda: server.post(CHAT, SHORT | {"model": "second"})[0] == 404), server.log()
    streamer.join()
    assert answers[0].usage["completion_tokens"] == 16 * 1900
    assert f"changed {MODEL}" not in server.log()
    assert server.stop() == 0


def test_of_many_swaps_the_last_is_what_counts(mounted):
    server, mount = mounted
    run(server, mount.folder / "terrace.yaml")
    assert until(lambda: ready(server)), server.log()
    for number in range(200):
        models = server.config["models"] + [{"name": f"m{number}", "source": str(TINY[OTHER])}]
        mount.swap(as_file(server.config | {"models": models}))
    assert until(lambda: server.post(CHAT, SHORT | {"model": "m199"})[0] == 200), server.log()
    names = [model["id"] for model in json.loads(server.get("/v1/models")[1])["data"]]
    assert sorted(names) == ["m199", MODEL]
    assert server.stop() == 0


def test_keys_of_a_swapped_secret_count_and_nobody_slips_in_meanwhile(servers):
    server = servers.start({MODEL: TINY[MODEL]}, memory={"device_budget": "64MiB"}, wait=False)
    files, texts = [], []
    for name in ("first", "second"):
        path = server.folder / f"{name}.json"
        command = [str(server.binary), "key", "add", name, "--json", "--auth.keys", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, done.stderr
        texts.append(json.loads(done.stdout)["key"])
        files.append({"keys.json": path.read_bytes()})
    secret = Mount(server.folder / "keys")
    secret.swap(files[0])
    server.config["auth"] = {"keys": str(secret.folder / "keys.json")}
    server.start()
    first, second = (bearer(text) for text in texts)
    assert server.post(CHAT, SHORT, headers=first)[0] == 200
    assert server.post(CHAT, SHORT, headers=second)[0] == 401
    secret.swap(files[1])
    seen = set()

    def rotated():
        seen.add(server.post(CHAT, SHORT)[0])
        return server.post(CHAT, SHORT, headers=second)[0] == 200

    assert until(rotated), server.log()
    assert server.post(CHAT, SHORT, headers=first)[0] == 401
    assert seen == {401}
    assert server.stop() == 0


def test_a_certificate_of_a_swapped_secret_is_used(servers, tmp_path):
    secret = Mount(tmp_path / "tls")

    def renew(name):
        make_certificate(tmp_path, name)
        secret.swap({f"tls.{to}": (tmp_path / of).read_bytes() for of, to in
                     (("cert.pem", "crt"), ("key.pem", "key"))})

    renew("first")
    server = servers.start(
        {MODEL: TINY[MODEL]},
        memory={"device_budget": "64MiB"},
        tls={"certificate": str(secret.folder / "tls.crt"), "key": str(secret.folder / "tls.key")},
        wait=False,
    )
    config = server.folder / "terrace.yaml"
    config.write_text(json.dumps(server.config))
    run(server, config)

    def named(name):
        try:
            return peer_name(server.port, tmp_path) == name
        except (OSError, AssertionError):
            return False

    for name in ("first", "second", "third"):
        if name != "first":
            renew(name)
        assert until(lambda name=name: named(name)), server.log()
    assert "stays in use" not in server.log()
    assert server.stop() == 0
