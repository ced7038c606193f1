"""The service around the models: keys, networks, TLS, framing, contracts, reload, versions, traces.
Cases A34, A35, A45, A48 and A50 of public bug reports are named where they are tried.
"""

import concurrent.futures
import json
import os
import random
import re
import socket
import ssl
import subprocess
import threading
import time

import pytest
import server_process
from conftest import GOLDEN, TINY
from test_hard_cases import LONG, MODEL, SHORT

CHAT = "/v1/chat/completions"
ONE = {MODEL: TINY[MODEL]}


def key_command(server, *arguments):
    """`terrace key ...` on the server's keys; its output as JSON."""
    command = [str(server.binary), "key", *arguments, "--json"]
    command += ["--config", str(server.folder / "terrace.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if done.stdout else None


def until(check, timeout_s=15):
    """What `check()` gives once that is true; False if it does not come to be."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if value := check():
            return value
        time.sleep(0.05)
    return False


def still(value):
    """What `value()` gives once it no longer changes: what was read ahead has come."""
    last, seen = None, value()
    while last != seen:
        time.sleep(0.3)
        last, seen = seen, value()
    return seen


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


# ---- Keys ----


@pytest.fixture
def keyed(servers):
    return servers.start(
        ONE,
        memory={"device_budget": "64MiB"},
        server={"admin_port": server_process.free_port()},
        log={"access": "access.log", "format": "json"},
    )


def test_keys_are_made_used_and_revoked_without_a_restart(keyed):
    assert keyed.post(CHAT, SHORT)[0] == 200  # loopback, and no key yet
    made = key_command(keyed, "add", "app", "--tenant", "team")
    assert re.fullmatch(r"tk_[A-Za-z0-9]{8}_[A-Za-z0-9]{43}", made["key"])
    assert until(lambda: keyed.post(CHAT, SHORT)[0] == 401)
    status, headers, body = keyed.request("POST", CHAT, SHORT)
    assert headers["www-authenticate"] == "Bearer"
    assert json.loads(body)["error"]["code"] == "invalid_api_key"
    assert keyed.post(CHAT, SHORT, headers=bearer(made["key"]))[0] == 200
    assert keyed.get("/health")[0] == 200 and keyed.get("/v2/health/live")[0] == 200
    assert keyed.get("/v1/models")[0] == 401 and keyed.get("/v2/models/stats")[0] == 401
    assert isinstance(json.loads(keyed.get("/api/tags")[1])["error"], str)
    # No right to administer, on either port.
    unload = f"/v2/repository/models/{MODEL}/unload"
    assert keyed.post(unload, {}, headers=bearer(made["key"]))[0] == 403
    admin_port = keyed.config["server"]["admin_port"]
    assert keyed.get("/admin/state", headers=bearer(made["key"]), port=admin_port)[0] == 403
    ops = key_command(keyed, "add", "ops", "--scope", "admin")
    assert until(
        lambda: keyed.get("/admin/state", headers=bearer(ops["key"]), port=admin_port)[0] == 200
    )
    assert [key["name"] for key in key_command(keyed, "list")] == ["app", "ops"]
    key_command(keyed, "revoke", made["id"])
    assert until(lambda: keyed.post(CHAT, SHORT, headers=bearer(made["key"]))[0] == 401)
    assert keyed.stop() == 0
    logs = keyed.log() + (keyed.folder / "access.log").read_text()
    assert made["key"][12:] not in logs and ops["key"][12:] not in logs
    assert f'"app ({made["id"]})"' in logs  # who it was, is there


def test_a_key_has_limits(keyed):
    made = key_command(keyed, "add", "few", "--requests-per-minute", "2")
    assert until(lambda: keyed.post(CHAT, SHORT)[0] == 401)
    codes = [keyed.post(CHAT, SHORT, headers=bearer(made["key"]))[0] for _ in range(3)]
    assert codes == [200, 200, 429]
    _, headers, body = keyed.request("POST", CHAT, SHORT, bearer(made["key"]))
    assert 1 <= int(headers["retry-after"]) <= 30
    assert json.loads(body)["error"]["code"] == "rate_limit_exceeded"


def test_beyond_loopback_nobody_is_served_without_a_key(servers):
    server = servers.start(
        ONE, memory={"device_budget": "64MiB"}, server={"host": "0.0.0.0"}, wait=False
    )
    server.start()
    assert server.post(CHAT, SHORT)[0] == 401 and "terrace key add" in server.log()
    made = key_command(server, "add", "app")
    assert until(lambda: server.post(CHAT, SHORT, headers=bearer(made["key"]))[0] == 200)


def test_allow_lists_refuse_other_networks(servers):
    server = servers.start(
        ONE,
        memory={"device_budget": "64MiB"},
        server={"allow": "192.0.2.0/24", "metrics_allow": "127.0.0.0/8"},
        wait=False,
    )
    with pytest.raises(server_process.ServerError, match="not ready"):
        server.start(timeout_s=3)
    server = servers.start(ONE, memory={"device_budget": "64MiB"}, server={"allow": "127.0.0.1"})
    assert server.post(CHAT, SHORT)[0] == 200


# ---- A50: browsers ----


def test_a50_preflights_need_no_key_and_origins_are_not_echoed_to_others(servers):
    good = "https://app.example"
    server = servers.start(ONE, memory={"device_budget": "64MiB"}, server={"cors_origins": good})
    made = key_command(server, "add", "app")
    assert until(lambda: server.post(CHAT, SHORT)[0] == 401)
    asked = (
        "authorization, content-type, x-stainless-timeout, x-stainless-helper-method, openai-beta"
    )
    preflight = {
        "Origin": good,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": asked,
    }
    status, headers, _ = server.request("OPTIONS", CHAT, headers=preflight)
    assert status == 204 and headers["access-control-allow-origin"] == good
    allowed = {name.strip() for name in headers["access-control-allow-headers"].split(",")}
    assert {name.strip() for name in asked.split(",")} <= allowed
    assert "access-control-allow-credentials" not in headers
    status, headers, _ = server.request(
        "OPTIONS", CHAT, headers=preflight | {"Origin": "https://evil.example"}
    )
    assert status == 403 and "access-control-allow-origin" not in headers
    for scheme, key, wanted in (
        ("Bearer", made["key"], 200),
        ("bearer", made["key"], 200),
        ("Bearer", "wrong", 401),
        ("Bearer", "", 401),
        ("", "", 401),
    ):
        asked_with = {"Authorization": f"{scheme} {key}"} if scheme else {}
        status, headers, body = server.request("POST", CHAT, SHORT, {"Origin": good} | asked_with)
        assert status == wanted and headers["access-control-allow-origin"] == good
        assert "access-control-allow-credentials" not in headers
        assert status == 200 or json.loads(body)["error"]["message"]


# ---- A45: framing ----


def exchange(server, text, wait_s=20):
    with socket.create_connection(("127.0.0.1", server.port), timeout=wait_s) as client:
        client.sendall(text)
        answer = b""
        while piece := client.recv(65536):
            answer += piece
    return answer


def test_a45_bodies_however_they_are_framed(tiny):
    body = SHORT | {"messages": [{"role": "user", "content": "Größe"}]}
    text = json.dumps(body, ensure_ascii=False).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n".encode()
    whole = exchange(tiny, head + f"Content-Length: {len(text)}\r\n\r\n".encode() + text)
    chunks = b"".join(b"1\r\n" + text[i : i + 1] + b"\r\n" for i in range(len(text))) + b"0\r\n\r\n"
    chunked = exchange(tiny, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks)
    # A client that waits for the go-ahead gets it at once; the machine may be busy, not each time.
    waits = []
    for _ in range(5):
        with socket.create_connection(("127.0.0.1", tiny.port), timeout=20) as client:
            padded = text + b" " * (2048 - len(text))
            client.sendall(head + b"Expect: 100-continue\r\nContent-Length: 2048\r\n\r\n")
            start = time.monotonic()
            assert client.recv(25) == b"HTTP/1.1 100 Continue\r\n\r\n"
            waits.append(time.monotonic() - start)
            client.sendall(padded)
            expected = b""
            while piece := client.recv(65536):
                expected += piece
    assert min(waits) < 0.1, waits
    answers = [json.loads(a[a.index(b"{") :]) for a in (whole, chunked, expected)]
    contents = [answer["choices"][0]["message"]["content"] for answer in answers]
    assert contents[0] == contents[1] == contents[2]
    framing = b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    both = exchange(tiny, head + framing + chunks)
    assert both.startswith(b"HTTP/1.1 400")
    # Refused before it is sent.
    large = exchange(tiny, head + b"Content-Length: 999999999\r\n\r\n")
    assert large.startswith(b"HTTP/1.1 413")


# ---- TLS ----


def make_certificate(folder, name):
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]
        + ["-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext"]
        + ["subjectAltName=IP:127.0.0.1", "-keyout", str(folder / "key.new")]
        + ["-out", str(folder / "cert.new")],
        check=True,
        capture_output=True,
    )
    os.replace(folder / "key.new", folder / "key.pem")
    os.replace(folder / "cert.new", folder / "cert.pem")


def peer_name(port, folder):
    context = ssl.create_default_context(cafile=str(folder / "cert.pem"))
    with socket.create_connection(("127.0.0.1", port), timeout=10) as plain:
        with context.wrap_socket(plain, server_hostname="127.0.0.1") as secure:
            subject = dict(field[0] for field in secure.getpeercert()["subject"])
            body = json.dumps(SHORT).encode()
            secure.sendall(
                f"POST {CHAT} HTTP/1.1\r\nHost: t\r\nConnection: close\r\n"
                f"Content-Length: {len(body)}\r\n\r\n".encode() + body
            )
            answer = b""
            while piece := secure.recv(65536):
                answer += piece
            assert answer.startswith(b"HTTP/1.1 200")
            return subject["commonName"]


def test_tls_and_a_renewed_certificate(servers, tmp_path):
    make_certificate(tmp_path, "first")
    server = servers.start(
        ONE,
        memory={"device_budget": "64MiB"},
        server={"grpc_port": server_process.free_port(), "admin_port": server_process.free_port()},
        tls={"certificate": str(tmp_path / "cert.pem"), "key": str(tmp_path / "key.pem")},
        wait=False,
    )
    try:
        server.start(timeout_s=2)
    except server_process.ServerError:
        pass  # it asks in plain HTTP, which this server does not speak
    config = server.folder / "terrace.yaml"
    with open(server.log_path, "ab") as log:
        server.process = subprocess.Popen(
            [str(server.binary), "serve", "--config", str(config)], stdout=log, stderr=log
        )

    def named(name):
        try:
            return peer_name(server.port, tmp_path) == name
        except (OSError, AssertionError):
            return False

    assert until(lambda: named("first"))
    import grpc
    import tritonclient.grpc

    port = server.config["server"]["grpc_port"]
    credentials = grpc.ssl_channel_credentials((tmp_path / "cert.pem").read_bytes())
    client = tritonclient.grpc.InferenceServerClient(f"127.0.0.1:{port}", creds=credentials)
    assert client.is_server_ready()
    client.close()
    # A command that asks it is told whom to trust.
    url = f"https://127.0.0.1:{server.port}"
    bench = [str(server.binary), "bench", "--url", url, "--duration", "1s", "--output", "4"]
    done = subprocess.run(bench, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "--ca FILE names the authority" in done.stderr
    done = subprocess.run(
        [*bench, "--ca", str(tmp_path / "absent")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1 and "--ca wants a file of certificates" in done.stderr
    bench += ["--admin", f"https://127.0.0.1:{server.config['server']['admin_port']}", "--json"]
    done = subprocess.run(
        [*bench, "--ca", str(tmp_path / "cert.pem")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["all"]["answered"] > 0
    assert told["server"]["after"]["totals"]["generated_tokens"] > 0
    make_certificate(tmp_path, "second")
    assert until(lambda: named("second"))
    (tmp_path / "key.pem").write_text("broken")
    time.sleep(1.5)
    assert named("second")
    assert server.stop() == 0


# ---- A34, A35: swaps and waiting ----


@pytest.fixture
def one_at_a_time(servers):
    """Room for one model, its KV and the workspace; none for both models."""
    names = ["tiny-qwen3", MODEL]
    size = max(TINY[name].stat().st_size for name in names)
    # 1 MiB of workspace, and 600 KiB for the KV of one long stream: less than the other model.
    return servers.start(
        {name: TINY[name] for name in names},
        memory={"device_budget": f"{size + (1624 << 10)}B", "hot_keep_time": "0s"},
        scheduler={"max_wait": "1h"},
    )


def streaming(server, body):
    """A long stream that has begun; its answer comes with `result()`."""
    pool = concurrent.futures.ThreadPoolExecutor(1)
    answer = pool.submit(server.stream, CHAT, body)
    pool.shutdown(wait=False)
    assert until(lambda: server.metric("terrace_running_requests", model=MODEL) > 0)
    return answer


def test_a34_a_long_stream_ends_whole_and_the_other_is_then_served(one_at_a_time):
    server = one_at_a_time
    alone = server.stream(CHAT, LONG).text
    other = SHORT | {"model": "tiny-qwen3"}
    text = server.post(CHAT, other)[1]["choices"][0]["message"]["content"]
    answer = streaming(server, LONG)
    status, body = server.post(CHAT, other)
    assert answer.done(), "it waited until the stream had ended"
    assert status == 200, body
    assert body["choices"][0]["message"]["content"] == text
    assert answer.result().usage["completion_tokens"] == 1900
    assert answer.result().finish_reason == "length" and answer.result().text == alone


def test_a34_who_may_not_wait_is_told_and_the_stream_stays_whole(one_at_a_time):
    server = one_at_a_time
    answer = streaming(server, LONG)
    other = SHORT | {"model": "tiny-qwen3"}
    status, headers, body = server.request("POST", CHAT, other, {"X-Terrace-Swap": "wait:0"})
    assert not answer.done(), "too short a stream to show anything"
    assert status == 503 and int(headers["retry-after"]) >= 1, body
    assert "did not get its turn" in json.loads(body)["error"]["message"]
    loads = server.metric("terrace_segment_loads_total", model="tiny-qwen3")
    assert answer.result().usage["completion_tokens"] == 1900
    assert server.metric("terrace_segment_loads_total", model="tiny-qwen3") == loads == 0
    assert server.post(CHAT, other)[0] == 200
    # Now the other way round: a request for a warm model only is refused without a swap.
    loads = still(lambda: server.metric("terrace_segment_loads_total"))
    status, headers, body = server.request("POST", CHAT, SHORT, {"X-Terrace-Swap": "warm-only"})
    assert status == 503 and int(headers["retry-after"]) >= 1
    assert b"not in device memory" in body
    assert server.metric("terrace_segment_loads_total") == loads


def test_a35_cold_requests_at_once_are_all_answered(servers):
    files = {"m1": TINY["tiny-qwen2"], "m2": TINY["tiny-qwen3"], "m3": TINY["tiny-qwen2"]}
    size = max(path.stat().st_size for path in files.values())
    server = servers.start(
        files,
        memory={"device_budget": f"{size + (1624 << 10)}B", "hot_keep_time": "0s"},
        scheduler={"max_wait": "50ms"},
    )
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        # One is loaded and idle; the two others are asked for within a millisecond.
        rng = random.Random(35)
        for _ in range(100):
            idle, *others = rng.sample(sorted(files), 3)
            assert server.post(CHAT, SHORT | {"model": idle})[0] == 200
            asked = [pool.submit(server.post, CHAT, SHORT | {"model": name}) for name in others]
            for answer in asked:
                status, body = answer.result(timeout=60)
                assert status == 200, body
    assert server.metric("terrace_segment_loads_total") > 0
    assert server.stop() == 0
    # The other way to come upon it: three models on a server that has just begun.
    for _ in range(100):
        server.start()
        with concurrent.futures.ThreadPoolExecutor(3) as pool:
            asked = [pool.submit(server.post, CHAT, SHORT | {"model": name}) for name in files]
            assert [answer.result(timeout=60)[0] for answer in asked] == [200] * 3
        assert server.stop() == 0
    assert " error " not in server.log()


# ---- A48: reload ----


def write_config(server, change):
    """Writes the server's configuration as an editor does: another file, renamed."""
    path = server.folder / "terrace.yaml"
    text = change if isinstance(change, str) else json.dumps(change)
    (server.folder / "new.yaml").write_text(text)
    os.replace(server.folder / "new.yaml", path)


def reloads(server, result):
    return server.metric("terrace_config_reloads_total", result=result)


def test_a48_bad_files_change_nothing_and_good_ones_only_what_they_change(servers):
    server = servers.start(
        {MODEL: TINY[MODEL], "second": TINY["tiny-qwen3"]}, memory={"device_budget": "128MiB"}
    )
    answers = []
    streamers = [
        threading.Thread(target=lambda: answers.append(server.stream(CHAT, LONG | {"n": 16})))
        for _ in range(4)
    ]
    for streamer in streamers:
        streamer.start()
    good = server.config
    models = good["models"]
    bad = [
        "models: [",
        json.dumps(good | {"modells": []}),
        json.dumps(good | {"models": models + [{"name": "new", "source": "/none.gguf"}]}),
    ]
    for number, text in enumerate(bad, 1):
        write_config(server, text)
        assert until(lambda: reloads(server, "error") == number), server.log()
        alive = [streamer.is_alive() for streamer in streamers]
        assert number > 1 or any(alive), "too short a stream to show anything"
        assert server.post(CHAT, SHORT | {"model": "second"})[0] == 200
    assert "not used" in server.log() and "modells" in server.log()
    write_config(
        server,
        good
        | {
            "models": [
                models[0],
                {"name": "second", "source": str(TINY["tiny-qwen2"])},
                {"name": "third", "source": str(TINY["tiny-qwen3"])},
            ]
        },
    )
    assert until(lambda: reloads(server, "ok") == 1), server.log()
    assert until(lambda: server.post(CHAT, SHORT | {"model": "third"})[0] == 200)
    assert until(lambda: server.post(CHAT, SHORT | {"model": "second"})[0] == 200)
    for streamer in streamers:
        streamer.join()
    assert [answer.usage["completion_tokens"] for answer in answers] == [16 * 1900] * 4
    assert f"changed {MODEL}" not in server.log() and "changed second" in server.log()
    # A model that leaves the file is gone.
    write_config(server, good | {"models": models[:1]})
    assert until(lambda: server.post(CHAT, SHORT | {"model": "third"})[0] == 404)
    assert server.post(CHAT, SHORT)[0] == 200


def test_versions_share_traffic(servers):
    server = servers.start(
        {
            "chat": TINY["tiny-qwen2"],
            "chat@2": {"source": str(TINY["tiny-qwen3"]), "traffic": 0.5},
        },
        memory={"device_budget": "128MiB"},
        server={"admin_port": (port := server_process.free_port())},
    )
    state = json.loads(server.get("/admin/state", port=port)[1])
    shares = {model["name"]: model.get("traffic") for model in state["models"]}
    assert shares == {"chat": None, "chat@2": 0.5}
    body = SHORT | {"model": "chat"}
    seen = [server.post(CHAT, body)[1]["model"] for _ in range(10)]
    assert sorted(seen) == ["chat"] * 5 + ["chat@2"] * 5
    assert server.post(CHAT, body | {"model": "chat@2"})[1]["model"] == "chat@2"
    status, answer = server.post("/v2/models/chat/versions/2/generate", {"text_input": "x"})
    assert status == 200 and answer["model_version"] == "2"


# ---- Traces and the admin port ----


def test_traces_and_the_admin_api(servers):
    server = servers.start(
        ONE,
        memory={"device_budget": "64MiB"},
        server={"admin_port": server_process.free_port()},
    )
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    _, headers, _ = server.request(
        "POST", CHAT, SHORT, {"traceparent": f"00-{trace}-00f067aa0ba902b7-01"}
    )
    assert re.fullmatch(rf"00-{trace}-[0-9a-f]{{16}}-01", headers["traceparent"])
    port = server.config["server"]["admin_port"]
    # Kept once the answer has gone out: we may be faster than that.
    events = until(
        lambda: json.loads(server.get(f"/admin/traces?trace={trace}", port=port)[1])["traceEvents"]
    )
    assert {"prefill", "decode"} <= {event["name"] for event in events}
    assert events[0]["args"]["model"] == MODEL and events[0]["args"]["parent_id"]
    state = json.loads(server.get("/admin/state", port=port)[1])
    assert state["models"][0]["resident_bytes"] > 0 and state["process"]["threads"] > 1
    device = next(tier for tier in state["tiers"] if tier["tier"] == "device")
    assert device["used_bytes"] == sum(line["bytes"] for line in device["lines"])
    assert server.get("/admin/state")[0] == 404  # not on the API's port
    lines = json.loads(server.get("/admin/logs", port=port)[1])
    assert lines["last"] >= 1 and any("model opened" in json.dumps(x) for x in lines["lines"])
    assert server.post(f"/admin/models/{MODEL}/evict", {}, port=port)[0] == 200
    state = json.loads(server.get("/admin/state", port=port)[1])
    assert state["models"][0].get("resident_bytes", 0) == 0
    top = subprocess.run(
        [str(server.binary), "top", "--once", "--url", f"http://127.0.0.1:{port}"],
        capture_output=True,
        text=True,
        timeout=20,
    )
    assert top.returncode == 0 and MODEL in top.stdout and "device" in top.stdout


def test_gzip_answers(tiny):
    import gzip

    many = {"model": MODEL, "prompt": "word " * 400}
    _, plain_headers, plain = tiny.request("POST", "/tokenize", many)
    _, headers, packed = tiny.request("POST", "/tokenize", many, {"Accept-Encoding": "gzip"})
    assert headers["content-encoding"] == "gzip" and "content-encoding" not in plain_headers
    assert len(packed) < len(plain) and gzip.decompress(packed) == plain
    body = gzip.compress(json.dumps(many).encode())
    status, _, answer = tiny.request("POST", "/tokenize", body, {"Content-Encoding": "gzip"})
    assert status == 200 and answer == plain
    bomb = gzip.compress(b" " * (64 << 20))
    assert tiny.request("POST", "/tokenize", bomb, {"Content-Encoding": "gzip"})[0] == 413
    assert tiny.request("POST", "/tokenize", b"x", {"Content-Encoding": "gzip"})[0] == 400


def test_alert_rules_hold_and_name_metrics_that_exist(tiny):
    import shutil

    rules = GOLDEN.parent.parent.parent / "deploy" / "prometheus"
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    for verb, file in (("check", "terrace.rules.yml"), ("test", "terrace.rules.test.yml")):
        command = [promtool, verb, "rules", file]
        done = subprocess.run(command, cwd=rules, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    documented = (rules.parent.parent / "docs" / "METRICS.md").read_text()
    dashboard = (rules.parent / "grafana" / "terrace.json").read_text()
    for text in ((rules / "terrace.rules.yml").read_text(), dashboard):
        for name in set(re.findall(r"\bterrace_[a-z_]+", text)):
            base = re.sub(r"_(bucket|sum|count)$", "", name)
            assert f"`{base}`" in documented or f"`{name}`" in documented, name
