"""Fixtures of the end-to-end tests: `terrace serve` processes over the tiny golden models and,
where they can be fetched, over two real ones. TERRACE_BIN names another binary to test.
"""

import os
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "scripts"))
# Loopback requests must not go through a proxy.
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "127.0.0.1,localhost"

import models
import server_process

GOLDEN = ROOT / "tests" / "data" / "golden"
# Tokens that every generated model has (make_model).
PROMPT = [(7 * i) % 250 for i in range(24)]
# The architectures of the tiny models that the shared server offers, by model name.
TINY = {
    f"tiny-{name}": GOLDEN / "arch" / f"{name}.gguf"
    for name in ("llama", "qwen2", "qwen3", "gemma3")
}


def make_model(shape, seed, folder, format="Q4_0"):
    """A generated model (bench/generate_model.h) in `folder`."""
    tool = server_process.default_binary().parent / "terrace_make_model"
    path = pathlib.Path(folder) / f"{shape}-{format}-{seed}.gguf"
    if not path.exists():
        subprocess.run([str(tool), shape, format, str(seed), str(path)], check=True)
    return path


@pytest.fixture(scope="session")
def pair(tmp_path_factory):
    """Two generated models of about 20 MB, by name; only to be read."""
    folder = tmp_path_factory.mktemp("models")
    return {name: make_model("small", seed, folder) for seed, name in enumerate(("m1", "m2"), 1)}


class _Servers:
    """Starts servers for one scope and stops them at its end."""

    def __init__(self, folder):
        self.folder = folder
        self.running = []

    def start(self, paths, wait=True, **config):
        """A server for `paths` (model name to file, or to a dict of the model's keys); `config`
        holds the other sections of terrace.yaml. With `wait` false it is made but not started."""
        config["models"] = [
            {"name": name} | (keys if isinstance(keys, dict) else {"source": str(keys)})
            for name, keys in paths.items()
        ]
        server = server_process.ServerProcess(config, self.folder / str(len(self.running)))
        self.running.append(server)
        return server.start() if wait else server

    def stop(self):
        for server in self.running:
            server.stop()


def _servers(request, tmp_path_factory):
    servers = _Servers(tmp_path_factory.mktemp("server"))
    # The hook below shows the logs of these servers when a test of this scope fails.
    request.node.terrace_servers = getattr(request.node, "terrace_servers", []) + [servers]
    yield servers
    servers.stop()


@pytest.fixture
def servers(request, tmp_path_factory):
    """Servers of one test: `servers.start({"name": path}, memory={...})`."""
    yield from _servers(request, tmp_path_factory)


@pytest.fixture(scope="module")
def module_servers(request, tmp_path_factory):
    yield from _servers(request, tmp_path_factory)


@pytest.fixture(scope="module")
def tiny(module_servers):
    """One server a test file, with the tiny models of TINY and room for all of them."""
    return module_servers.start(TINY, memory={"device_budget": "256MiB"})


@pytest.fixture(scope="session")
def real_models():
    """Paths of the two real models, by name; skips the test where they cannot be fetched."""
    try:
        return {name: models.fetch(name) for name in models.MODELS}
    except models.FetchError as error:
        pytest.skip(f"the real models cannot be fetched: {error}")


@pytest.fixture
def client(tiny):
    """The openai client of the shared server with the tiny models."""
    return openai_client(tiny)


def openai_client(server, **options):
    import openai

    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0, **options)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    if not report.failed:
        return
    for node in item.listchain():
        for servers in getattr(node, "terrace_servers", []):
            for server in servers.running:
                report.sections.append((f"log of {server.folder.name}", server.log()[-20000:]))
