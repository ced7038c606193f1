"""Models from a real S3 server, Ceph's RADOS Gateway: as a user gives them to `serve`, `pull` and
`doctor`, with temporary credentials and the bucket in the host's name.
"""

import subprocess

import ceph_gateway
import pytest
from conftest import PROMPT
from server_process import default_binary, free_port
from test_crash import ask, wait_for

pytestmark = pytest.mark.skipif(
    not ceph_gateway.installed(), reason="radosgw, ceph-mon and ceph-osd are not installed"
)


@pytest.fixture(scope="module")
def gateway():
    gateway = ceph_gateway.CephGateway()
    gateway.bucket("models")
    yield gateway
    gateway.stop()


@pytest.fixture
def session(gateway, monkeypatch, request):
    """Temporary credentials in the environment."""
    server = f"the RADOS Gateway of Ceph {gateway.version} as S3 server"
    request.node.user_properties.append(("with", server))  # printed by scripts/test_summary.py
    key, secret, token = gateway.session()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    monkeypatch.setenv("AWS_SESSION_TOKEN", token)
    for name in ["no_proxy", "NO_PROXY"]:
        monkeypatch.setenv(name, "127.0.0.1,localhost,.localhost")
    return token


def settings(gateway, addressing):
    host = "localhost" if addressing == "virtual" else "127.0.0.1"
    return {"endpoint": f"http://{host}:{gateway.port}", "addressing": addressing}


def text_of(answer):
    return answer["choices"][0]["text"]


@pytest.mark.parametrize("addressing", ["path", "virtual"])
def test_a_model_is_served_from_it_and_then_without_it(
    servers, pair, gateway, session, addressing
):
    expected = servers.start({"m1": pair["m1"]}, memory={"device_budget": "64MiB"})
    want = text_of(ask(expected, "m1", PROMPT)[1])
    key = f"by {addressing}/m+1.gguf"
    assert "-" in gateway.upload("models", key, pair["m1"].read_bytes()), "not of parts"
    server = servers.start(
        {"far": {"source": f"s3://models/{key}"}},
        wait=False,
        memory={"device_budget": "64MiB"},
        storage={"object": settings(gateway, addressing)},
    )
    server.config["storage"]["disk"] = {"path": str(server.folder / "store")}
    server.start()
    status, answer = ask(server, "far", PROMPT)
    assert status == 200 and text_of(answer) == want, answer
    wait_for(lambda: list((server.folder / "store" / "objects").glob("*.state")))
    server.stop()
    assert session not in server.log(), "the token is in the log"
    # What was written through is used where the store does not answer.
    server.config["storage"]["object"]["endpoint"] = f"http://127.0.0.1:{free_port()}"
    server.start()
    status, answer = ask(server, "far", PROMPT)
    assert status == 200 and text_of(answer) == want, answer


def terrace(*words):
    done = subprocess.run(
        [str(default_binary()), *map(str, words)], capture_output=True, text=True, timeout=120
    )
    return done.returncode, done.stdout + done.stderr


def test_a_model_is_pulled_from_it(tmp_path, pair, gateway, session, monkeypatch):
    gateway.upload("models", "pulled/m1.gguf", pair["m1"].read_bytes())
    pull = ["pull", "s3://models/pulled/m1.gguf", "--storage.disk.path"]
    # By the variables that other tools take, too.
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://localhost:{gateway.port}")
    monkeypatch.setenv("AWS_S3_ADDRESSING_STYLE", "virtual")
    status, out = terrace(*pull, tmp_path / "variables")
    assert status == 0, out
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
    keys = settings(gateway, "path")
    flags = [f"--storage.object.{name}={value}" for name, value in keys.items()]
    status, out = terrace(*pull, tmp_path / "keys", *flags)
    assert status == 0, out
    for folder in ["variables", "keys"]:
        files = [path.read_bytes() for path in (tmp_path / folder).rglob("*.gguf")]
        assert files == [pair["m1"].read_bytes()], out
    # Over TLS, with a certificate that no system knows.
    tls = f"--storage.object.endpoint={gateway.tls_endpoint}"
    status, out = terrace(*pull, tmp_path / "strange", tls)
    assert status != 0 and "certificate" in out, out
    trusted = f"--storage.object.ca={gateway.certificate}"
    status, out = terrace(*pull, tmp_path / "tls", tls, trusted)
    assert status == 0, out
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not it")
    status, out = terrace(*pull, tmp_path / "refused", *flags)
    assert status != 0 and "s3://models/pulled/m1.gguf" in out and "403" in out, out


def test_doctor_tells_whether_it_can_be_read(tmp_path, pair, gateway, session, monkeypatch):
    gateway.put("models", "seen.gguf", pair["m1"].read_bytes())
    config = tmp_path / "terrace.yaml"
    style = settings(gateway, "virtual")
    config.write_text(
        f"models: [{{name: m, source: 's3://models/seen.gguf'}}]\n"
        f"storage: {{disk: {{path: {tmp_path}}}, object: {{endpoint: '{style['endpoint']}',"
        f" addressing: {style['addressing']}}}}}\n"
    )
    _, out = terrace("doctor", "--config", config)
    line = next(line for line in out.splitlines() if "s3://models/seen.gguf" in line)
    assert "answers in" in line and "MB/s" in line, out
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not it")
    _, out = terrace("doctor", "--config", config)
    assert "AWS_SECRET_ACCESS_KEY" in out and "answers in" not in out, out
