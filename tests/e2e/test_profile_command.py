"""`terrace profile` of a request and of a switch, with stacks where perf can sample them, and what
it says where it cannot."""

import json
import os
import subprocess

import pytest
import server_process
from pages import look

BINARY = str(server_process.default_binary())


@pytest.fixture(scope="module")
def server(module_servers, pair):
    port = server_process.free_port()
    return module_servers.start(
        pair, memory={"device_budget": "64MiB"}, server={"admin_port": port}
    )


def profile(server, folder, *arguments, path=None, status=0):
    admin = f"http://127.0.0.1:{server.config['server']['admin_port']}"
    environment = dict(os.environ) | ({"PATH": str(path)} if path is not None else {})
    command = [BINARY, "profile", *arguments, "--url", server.url, "--admin", admin]
    command += ["--out", str(folder / "profile"), "--json"]
    # As a job in the background, which shells start with SIGINT ignored.
    command = ["/bin/sh", "-c", "trap '' INT; exec \"$@\"", "sh", *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout) if status == 0 else done.stderr


def fake_perf(folder, script):
    folder.mkdir()
    (folder / "perf").write_text("#!/bin/sh\n" + script)
    (folder / "perf").chmod(0o755)
    return folder


# Two stacks, whatever was asked for.
SAMPLES = """\
stack='terrace\\n\\t1 inner(int)\\n\\t2 outer\\n\\n'
case $1 in
  record) trap 'exit 0' INT; while :; do sleep 0.1; done ;;
  script) printf "$stack$stack" ;;
esac
"""


def data_of(folder):
    page = (folder / "profile.html").read_text()
    return json.loads(page.split('id="data">')[1].split("</script>")[0])


def test_a_switch_shows_segments_that_arrive(server, tmp_path):
    bin_folder = fake_perf(tmp_path / "bin", SAMPLES)
    path = f"{bin_folder}:{os.environ['PATH']}"
    told = profile(server, tmp_path, "switch", "m1", "--other", "m2", "--output", "16", path=path)
    assert told["request_ms"] >= told["prefill_ms"] >= told["swap_ms"] > 0
    assert told["tokens"] > 1 and told["looks"] > 3 and told["samples"] == 2
    data = data_of(tmp_path)
    kinds = {span["kind"] for span in data["timeline"]["spans"]}
    assert {"request", "prefill", "swap", "decode"} <= kinds
    assert kinds & {"arriving", "there", "used"}, kinds
    names = {segment["name"] for segment in data["timeline"]["segments"]}
    assert "blk.0.attn" in names and "embed" in names
    begin, end = data["timeline"]["begin"], data["timeline"]["end"]
    assert all(begin <= token <= end + 5000 for token in data["timeline"]["tokens"])
    assert data["flame"]["unit"] == "samples" and data["flame"]["tree"]["value"] == 2
    assert (tmp_path / "profile.folded").read_text() == "terrace;outer;inner 2\n"
    trace = json.loads((tmp_path / "profile.json").read_text())
    assert {event["ph"] for event in trace["traceEvents"]} == {"X", "M", "C", "i"}

    def check(page, where):
        assert page.locator("svg[role=img]").count() == 2
        assert page.locator("svg rect.part").count() > 10
        assert page.get_by_role("cell", name="inner").is_visible()
        # A click shows a part alone, the button all of it again.
        flame = page.locator("svg").last
        flame.locator("rect", has=page.locator("title", has_text="outer")).click()
        assert flame.locator("title").count() == 2
        page.get_by_role("button", name="Show all").click()
        assert flame.locator("title").count() == 4

    look(tmp_path / "profile.html", check)


def test_without_perf_the_request_itself_is_the_flame_graph(server, tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    told = profile(server, tmp_path, "request", "m1", "--words", "200", path=empty)
    assert told["samples"] == 0 and "perf" in told["stacks_note"]
    data = data_of(tmp_path)
    assert data["flame"]["unit"] == "us" and data["flame"]["note"] == told["stacks_note"]
    children = {child["name"] for child in data["flame"]["tree"]["children"][0]["children"]}
    assert {"prefill", "decode"} <= children

    def check(page, where):
        assert "Of the request's parts" in page.locator("main").inner_text()

    look(tmp_path / "profile.html", check)


def test_perf_that_may_not_sample_is_told_in_its_own_words(server, tmp_path):
    path = fake_perf(tmp_path / "bin", "echo 'No permission to trace' >&2; exit 255\n")
    told = profile(server, tmp_path, "request", "m1", path=f"{path}:{os.environ['PATH']}")
    assert "No permission to trace" in told["stacks_note"]
    told = profile(server, tmp_path, "request", "m1", "--no-stacks")
    assert told["stacks_note"] == "not asked for"


def test_what_cannot_be_profiled_is_said(server, tmp_path):
    assert "404" in profile(server, tmp_path, "request", "absent", "--no-stacks", status=1)
    assert profile(server, tmp_path, "switch", "absent", "--no-stacks", status=1)
    assert not (tmp_path / "profile.html").exists()
