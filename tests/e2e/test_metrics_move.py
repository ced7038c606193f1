"""Every metric of the documented table exists and moves: one server is driven through all that they
tell of. What a virtual machine has no sensor for is tested beside the code that reads it
(tests/os/machine_sensors_test.cc).
"""

import concurrent.futures
import json
import os
import pathlib
import re
import signal
import struct
import time

import pytest
import server_process
from conftest import ROOT, TINY
from test_hard_cases import LONG, MODEL, SHORT
from test_service import CHAT, reloads, until, write_config
from test_supervisor import engine_pid

HARDWARE = {"terrace_device_temperature_celsius", "terrace_device_power_watts"}
# Scrubbing waits until the disk has been idle for long; tests/tier/scrubber_test.cc drives it.
IDLE = {"terrace_scrubbed_bytes_total", "terrace_scrub_damage_total"}
# Loads of models this small are over before anything is held back: tests/scheduler/beside_test.cc
# and tests/server/tier_metrics_test.cc. A hung engine is shown in tests/e2e/test_supervisor.py.
ELSEWHERE = {"terrace_held_load_seconds_total", "terrace_engine_stale_seconds"}
ADMIN = server_process.free_port()


def documented():
    """{name: type} of the table."""
    text = (ROOT / "docs" / "METRICS.md").read_text()
    return dict(re.findall(r"^\| `(terrace_\w+)` \| (\w+) \|", text, re.M))


def broken_model(path):
    """A copy of a model whose weights are no numbers from some point on."""
    whole = bytearray(TINY[MODEL].read_bytes())
    tail = len(whole) // 4 // 4 * 4
    whole[-tail:] = struct.pack("<I", 0x7FC07FC0) * (tail // 4)
    path.write_bytes(whole)
    return path


@pytest.fixture
def server(servers, tmp_path):
    small = TINY[MODEL]
    # Room for one model, the workspace and some hundred KiB of KV.
    room = max(small.stat().st_size, TINY["tiny-qwen3"].stat().st_size) + (1624 << 10)
    return servers.start(
        {
            MODEL: {"source": str(small), "speculation": "ngram"},
            "second": {"source": str(TINY["tiny-qwen3"])},
            "second@bad": {
                "source": str(broken_model(tmp_path / "bad.gguf")),
                "traffic": 0.5,
                "rollback_errors": 0.01,
            },
        },
        memory={"device_budget": f"{room}B", "hot_keep_time": "0s"},
        scheduler={"max_wait": "100ms"},
        kv={"disk_size": "64MiB"},
        server={"supervise": "on", "admin_port": ADMIN},
        storage={"disk": {"path": "store", "size": "1GiB"}},
    )


class Seen:
    """What each metric was at each look; a metric moves if it was ever two things."""

    def __init__(self, server):
        self.server, self.values = server, {}

    def look(self, server=None):
        for (name, labels), value in (server or self.server).metrics().items():
            self.values.setdefault(name, {}).setdefault(labels, set()).add(value)

    def moved(self, name, kind):
        series = self.values.get(f"{name}_count" if kind == "histogram" else name, {})
        # A counter comes into being with its first event, a gauge may stand still.
        least = 2 if kind == "gauge" else 1
        return any(len(values) >= least and max(values) > 0 for values in series.values())


def drive(server, seen):
    """All that the metrics count, but for a restart."""
    seen.look()
    # Requests, streams, guesses, a prompt that comes back, an error, a swap and another.
    for _ in range(3):
        assert server.post(CHAT, LONG | {"max_tokens": 60})[0] == 200
        assert server.post(CHAT, SHORT | {"model": "second", "max_tokens": 40})[0] in (200, 500)
        seen.look()
    words = {"messages": [{"role": "user", "content": "down the river " * 20}]}
    for _ in range(2):
        assert server.post(CHAT, SHORT | words)[0] == 200
    assert server.post(CHAT, {"model": MODEL})[0] == 400
    # A version that fails loses its share.
    for _ in range(60):
        server.post(CHAT, SHORT | {"model": "second"})
    seen.look()
    good = server.config
    write_config(server, "models: [")
    assert until(lambda: reloads(server, "error") == 1)
    models = [model | {"hot_keep_time": "1s"} for model in good["models"]]
    write_config(server, good | {"models": models})
    assert until(lambda: reloads(server, "ok") == 1)
    damage(server)
    seen.look()


def crowd(servers, seen):
    """More KV than fits on a server of its own: somebody gives way, others wait meanwhile."""
    room = TINY[MODEL].stat().st_size + (1800 << 10)
    server = servers.start(
        {MODEL: TINY[MODEL]}, memory={"device_budget": f"{room}B"}, kv={"disk_size": "64MiB"}
    )

    def another(word):
        return LONG | {"messages": [{"role": "user", "content": word}]}

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        long = [pool.submit(server.post, CHAT, another(word)) for word in "abcdefghijkl"]
        while not all(each.done() for each in long):
            seen.look(server)
            time.sleep(0.05)
        refused = [each.result() for each in long if each.result()[0] != 200]
        assert not refused, refused
    seen.look(server)


def damage(server):
    """Flips bytes of what lies on disk of a model, and asks for it."""
    store = pathlib.Path(server.folder) / "store" / "images"
    for folder in store.iterdir():
        path = folder / "blocks.bin"
        if not path.exists():
            continue
        with open(path, "r+b") as blocks:
            for offset in range(5000, path.stat().st_size, 20_000):
                blocks.seek(offset)
                byte = blocks.read(1)
                blocks.seek(offset)
                blocks.write(bytes([byte[0] ^ 16]))
    for name in (MODEL, "second"):
        server.post(f"/admin/models/{name}/evict", {}, port=ADMIN)
        server.post(CHAT, SHORT | {"model": name})


def test_every_metric_of_the_table_moves(server, servers):
    seen = Seen(server)
    drive(server, seen)
    crowd(servers, seen)
    # The next server takes what the file says by then, more memory too.
    more = server.config | {"memory": server.config["memory"] | {"device_budget": "16MiB"}}
    write_config(server, more)
    os.kill(engine_pid(server), signal.SIGKILL)
    assert until(lambda: server.get("/ready")[0] == 200)
    seen.look()
    table = documented()
    assert len(table) > 30
    assert not set(seen.values) - names_of(table), "all that is shown is documented"
    still = [name for name, kind in table.items() if not seen.moved(name, kind)]
    assert set(still) <= HARDWARE | IDLE | ELSEWHERE, still


def names_of(table):
    out = set(table)
    for name, kind in table.items():
        if kind == "histogram":
            out |= {f"{name}_{part}" for part in ("bucket", "sum", "count")}
    return out


def test_sensors_are_one_snapshot_of_twelve_figures(server):
    def sensors():
        return json.loads(server.get("/admin/state", port=ADMIN)[1])["sensors"]

    assert server.post(CHAT, SHORT)[0] == 200
    first = sensors()
    assert len(first) - len({"time_us"}) == 12
    assert until(lambda: sensors()["time_us"] > first["time_us"], 5)
    now = sensors()
    assert 0 < now["device_used_bytes"] <= now["device_budget_bytes"]
    assert 0 < now["host_resident_bytes"] and 0 < now["host_available_bytes"]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        asked = pool.submit(server.post, CHAT, LONG | {"n": 4})
        assert until(lambda: sensors()["running"] > 0)
        assert until(lambda: (sensors()["utilisation"] or 0) > 0 or asked.done())
        assert asked.result()[0] == 200
    assert until(lambda: sensors()["running"] == sensors()["waiting"] == 0)
    assert server.metric("terrace_host_memory_bytes", kind="resident") > 0


def alert_names(text):
    return set(re.findall(r"alert: (\w+)", text))


def test_every_alert_has_a_test_that_fires_it_and_stands_in_a_document():
    rules = ROOT / "deploy" / "prometheus"
    alerts = alert_names((rules / "terrace.rules.yml").read_text())
    tests = (rules / "terrace.rules.test.yml").read_text()
    assert len(alerts) >= 10
    for name in alerts:
        fired = re.search(rf"alertname: {name}\s+exp_alerts:\s+- ", tests)
        assert fired or re.search(rf'alertname="{name}"}}\', value: 1', tests), name
        quiet = re.search(rf"alertname: {name}, exp_alerts: \[\]", tests)
        assert quiet, f"{name}: no test in which it keeps quiet"
    documented_alerts = (ROOT / "docs" / "METRICS.md").read_text()
    for name in alerts:
        assert f"`{name}`" in documented_alerts, name
