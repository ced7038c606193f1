"""`terrace verify stability`: a sound server passes, one that grows is found out."""

import http.server
import json
import subprocess
import threading
import time

import server_process
from conftest import TINY

BINARY = str(server_process.default_binary())


def verify(url, admin, *arguments, status=0):
    command = [BINARY, "verify", "stability", "--url", url, "--admin", admin, "--json", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)
    assert done.returncode == status, done.stderr + done.stdout
    return json.loads(done.stdout), done.stderr


def test_a_sound_server_is_stable(servers):
    port = server_process.free_port()
    server = servers.start(
        TINY,
        memory={"device_budget": "64MiB"},
        kv={"disk_size": "off"},
        server={"admin_port": port},
    )
    told, _ = verify(
        server.url, f"http://127.0.0.1:{port}", "--duration", "8s", "--prompt", "16-64",
        "--output", "1-16",
    )  # fmt: skip
    assert told["faults"] == [] and told["looks"] > 50
    names = [row["name"] for row in told["growth"]]
    assert names == ["memory beside the ledger", "descriptors", "threads", "ledger without KV"]
    assert all(row["holds"] and row["mean"] > 0 for row in told["growth"])
    assert told["load"]["all"]["answered"] > 50
    # It ends after as many requests as it is told, and says if that was too short.
    told, err = verify(
        server.url, f"http://127.0.0.1:{port}", "--requests", "5", "--output", "1", status=1
    )
    assert told["load"]["all"]["answered"] == 5
    assert "too short to tell" in told["faults"][0] and "too short" in err


class Leaking(http.server.BaseHTTPRequestHandler):
    """Answers like a server whose descriptors grow, and which is started again once."""

    protocol_version = "HTTP/1.1"
    begin = time.monotonic()
    restarts_at_s = 1e9

    def log_message(self, *_):
        pass

    def do_GET(self):
        if self.path == "/v1/models":
            return self.answer(json.dumps({"data": [{"id": "m"}]}))
        age = time.monotonic() - Leaking.begin
        process = {"pid": 1 if age < Leaking.restarts_at_s else 2, "rss_bytes": 1 << 30,
                   "descriptors": int(100 + 20 * age), "threads": 8}
        tiers = [{"tier": "device", "used_bytes": 1 << 20, "lines": []}]
        models = [{"name": "m", "waiting": 0, "running": 0}]
        self.answer(json.dumps({"process": process, "tiers": tiers, "models": models}))

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep(0.01)
        self.answer('data: {"choices": [{"text": "x"}]}\n\ndata: [DONE]\n\n')

    def answer(self, text):
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


def leaking(restarts_at_s):
    Leaking.begin, Leaking.restarts_at_s = time.monotonic(), restarts_at_s
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Leaking) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        told, err = verify(url, url, "--duration", "4s", "--clients", "2", status=1)
        server.shutdown()
    return told, err


def test_what_grows_is_named():
    told, err = leaking(1e9)
    assert [row["name"] for row in told["growth"] if not row["holds"]] == ["descriptors"]
    assert any(fault.startswith("descriptors rose by") for fault in told["faults"])
    assert "not stable" in err


def test_a_restart_meanwhile_is_a_fault():
    told, _ = leaking(2)
    assert any("started again" in fault for fault in told["faults"]), told["faults"]
