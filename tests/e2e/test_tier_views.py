"""What an operator sees of the tiers: which pages of a model are read, and images that are read in
idle time and mended.
"""

import json
import subprocess

import server_process
from conftest import PROMPT, make_model
from test_crash import ask, images, wait_for


def start(servers, tmp_path, port, **config):
    model = make_model("small", 1, tmp_path)
    return servers.start({"m": model}, server={"admin_port": port}, **config)


def test_reads_of_pages_are_shown_where_they_are_counted(servers, tmp_path):
    port = server_process.free_port()
    server = start(servers, tmp_path, port, memory={"trace_pages": "on"})
    assert ask(server, "m", PROMPT)[0] == 200
    status, answer = server.get("/admin/pages?model=m&cells=8", port=port)
    assert status == 200, answer
    answer = json.loads(answer)
    segments = {segment["name"]: segment for segment in answer["segments"]}
    attention = segments["blk.0.attn"]
    assert attention["read_pages"] == attention["pages"] and min(attention["reads"]) >= 1
    assert all(len(segment["reads"]) <= 8 for segment in answer["segments"])
    shown = subprocess.run(
        [str(server.binary), "profile", "pages", "m", "--url", f"http://127.0.0.1:{port}"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert "blk.0.attn" in shown and "|" in shown
    assert server.get("/admin/pages?model=none", port=port)[0] == 404


def test_where_pages_are_not_counted_the_command_says_how(servers, tmp_path):
    port = server_process.free_port()
    server = start(servers, tmp_path, port)
    shown = subprocess.run(
        [str(server.binary), "profile", "pages", "m", "--url", f"http://127.0.0.1:{port}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert shown.returncode != 0 and "memory.trace_pages" in shown.stderr


def test_damage_on_an_idle_disk_is_found_and_mended(servers, tmp_path):
    port = server_process.free_port()
    store = tmp_path / "store"
    server = start(servers, tmp_path, port, storage={"disk": {"path": str(store), "scrub": "1s"}})
    first = ask(server, "m", PROMPT)[1]["choices"][0]["text"]
    wait_for(lambda: len(images(store)) == 1)
    (folder,) = images(store)
    blocks = store / "images" / folder / "blocks.bin"
    with open(blocks, "r+b") as file:
        file.seek(blocks.stat().st_size // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    wait_for(lambda: server.metric("terrace_scrub_damage_total") >= 1, 60)
    whole = lambda: blocks.read_bytes()[blocks.stat().st_size // 2] == byte[0]
    wait_for(whole)
    assert server.metric("terrace_scrubbed_bytes_total") > 0
    assert ask(server, "m", PROMPT)[1]["choices"][0]["text"] == first


def test_kv_that_leaves_a_device_of_its_own_returns_from_the_host(servers, tmp_path):
    model = make_model("small", 1, tmp_path)
    server = servers.start(
        {"m": {"source": str(model), "max_context": 1024}},
        device={"kind": "sim", "sim": {"memory": "64MiB"}},
        memory={"device_budget": f"{model.stat().st_size // 2**20 + 24}MiB"},
        kv={"host_size": "64MiB", "disk_size": "off"},
    )
    talks = [[(7 * i + 3 * k) % 250 for i in range(600)] for k in range(6)]
    first = [ask(server, "m", talk)[1]["choices"][0]["text"] for talk in talks]
    again = [ask(server, "m", talk)[1]["choices"][0]["text"] for talk in talks]
    assert again == first
    assert server.metric("terrace_kv_tokens_total", model="m", source="host") > 0
