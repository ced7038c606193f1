"""`terrace bench`: a load on a real server, and what it tells as JSON and as a page."""

import http.server
import json
import signal
import subprocess
import threading
import time

import pytest
import server_process
from conftest import TINY
from pages import look

BINARY = str(server_process.default_binary())


def bench(*arguments, environment=None, status=0):
    done = subprocess.run(
        [BINARY, "bench", *arguments], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == status, done.stderr + done.stdout
    return done


@pytest.fixture(scope="module")
def server(module_servers):
    port = server_process.free_port()
    return module_servers.start(
        TINY, memory={"device_budget": "64MiB"}, server={"admin_port": port}
    )


def test_flags_make_a_load_and_a_report(server, tmp_path):
    page = tmp_path / "bench.html"
    admin = f"http://127.0.0.1:{server.config['server']['admin_port']}"
    done = bench(
        "--url", server.url, "--models", "3", "--duration", "3s", "--clients", "3", "--prompt",
        "20-60", "--output", "8", "--zipf", "1", "--goal", "30s", "--json", "--report", str(page),
        "--admin", admin,
    )  # fmt: skip
    told = json.loads(done.stdout)
    assert told["all"]["answered"] > 3 and told["all"]["failed"] == 0
    assert told["all"]["time_to_first_token_s"]["count"] > 0
    assert len(told["models"]) == 3 and {row["model"] for row in told["rows"]} <= set(TINY)
    for row in told["rows"]:
        first, whole = row["time_to_first_token_s"], row["request_s"]
        # Of those that had a first token: a model may end its answer at once, and where the machine
        # is busy with something else few were asked of one, so that all of them may have.
        assert row["in_goal"] == first["count"] <= row["answered"]
        if first["count"] > 0:
            assert 0 < first["p50"] <= first["p95"] <= first["p99"]
        if first["count"] == row["answered"]:
            assert first["p50"] <= whole["p50"] * 1.02
        # As long as they were asked to be: the server tells how many tokens a word has.
        assert 15 <= row["prompt_tokens"] / row["answered"] <= 70, row
        assert row["output_tokens"] <= 8 * row["answered"]
    made = [told["server"][when]["totals"]["generated_tokens"] for when in ("before", "after")]
    assert made[1] - made[0] >= told["all"]["output_tokens"]
    shown = json.loads(page.read_text().split('id="data">')[1].split("</script>")[0])
    assert shown["all"]["answered"] == told["all"]["answered"]

    def check(opened, where):
        assert opened.locator("canvas").count() == 5
        assert opened.locator("table.cards tbody tr").count() == len(told["rows"])
        for row in told["rows"]:
            assert opened.get_by_role("cell", name=row["model"]).first.is_visible()

    look(page, check)


def test_a_mix_has_classes_with_keys_of_their_own(servers, tmp_path):
    server = servers.start({"m": TINY["tiny-qwen2"]}, memory={"device_budget": "64MiB"})
    command = [BINARY, "key", "add", "quick", "--config", str(server.folder / "terrace.yaml")]
    key = json.loads(subprocess.check_output([*command, "--json"]))["key"]
    time.sleep(1.5)  # the server sees it
    mix = tmp_path / "mix.yaml"
    mix.write_text(
        "duration: 2s\nclasses:\n"
        "  - {name: quick, rate: 10, prompt_tokens: 20, output_tokens: 4, key_env: QUICK_KEY,\n"
        "     sla: standard, goal: 30s}\n"
        "  - {name: talk, clients: 1, output_tokens: 12, chat: on, key_env: QUICK_KEY,\n"
        "     shared_tokens: 64}\n"
    )
    url = ["--url", server.url, "--model", "m", "--json"]
    # Which models there are is asked with the key of a class, too.
    done = bench(str(mix), "--url", server.url, "--json", environment={"QUICK_KEY": key})
    rows = {row["class"]: row for row in json.loads(done.stdout)["rows"]}
    assert rows["quick"]["answered"] > 3 and rows["talk"]["answered"] >= 1
    absent = bench(str(mix), *url, environment={}, status=1)
    assert "there is no variable QUICK_KEY" in absent.stderr
    refused = bench(str(mix), *url, environment={"QUICK_KEY": "wrong"}, status=1)
    assert "no request was answered" in refused.stderr
    assert key not in done.stdout and key not in done.stderr


def test_a_trace_asks_at_its_times(server, tmp_path):
    trace = tmp_path / "trace.csv"
    lines = [f"{at},tiny-qwen3,{20 + at},4" for at in range(0, 40, 4)]
    trace.write_text("seconds,model,prompt_tokens,output_tokens\n" + "\n".join(lines) + "\n")
    done = bench("--url", server.url, "--trace", str(trace), "--speed", "20", "--json")
    told = json.loads(done.stdout)
    assert told["all"]["answered"] == len(lines)
    assert told["rows"][0]["model"] == "tiny-qwen3"
    assert told["seconds"] >= 36 / 20  # the last one is due then


def test_an_interrupted_load_tells_what_it_measured(server):
    process = subprocess.Popen(
        [BINARY, "bench", "--url", server.url, "--duration", "1h", "--json", "--output", "4"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    before = server.metric("terrace_generated_tokens_total")
    while server.metric("terrace_generated_tokens_total") < before + 40:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    told = json.loads(out)
    assert told["stopped"] and told["all"]["answered"] > 0 and told["all"]["failed"] == 0


class Faulty(http.server.BaseHTTPRequestHandler):
    """A server whose every third stream breaks off, and which refuses every other third."""

    protocol_version = "HTTP/1.1"
    asked = 0

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.answer(200, json.dumps({"data": [{"id": "m"}]}))

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/tokenize":
            return self.answer(404, "{}")
        Faulty.asked += 1
        event = 'data: {"choices": [{"text": "x"}]}\n\n'
        if Faulty.asked % 3 == 0:
            self.answer(429, '{"error": {"message": "busy"}}')
        else:
            self.answer(200, event * 3 + ("data: [DONE]\n\n" if Faulty.asked % 3 == 1 else ""))

    def answer(self, status, text):
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())


def test_what_is_refused_and_what_breaks_off_is_counted_apart():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Faulty) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        done = bench("--url", url, "--duration", "2s", "--clients", "1", "--json", status=1)
        server.shutdown()
    told = json.loads(done.stdout)
    assert told["all"]["answered"] > 0 and told["all"]["refused"] > 0 and told["all"]["failed"] > 0
    assert list(told["errors"]) == ["the stream ended without [DONE]"]
    assert "requests failed" in done.stderr
    # Without usage, pieces of text count.
    assert told["all"]["output_tokens"] == 3 * told["all"]["answered"]
