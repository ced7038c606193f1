"""The server as its supervisor keeps it: killed, stopped or hung it is back within seconds, on the
same ports, and its clients are told.
"""

import contextlib
import ctypes
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import threading
import time

import pytest
import server_process
from conftest import TINY
from test_hard_cases import LONG, MODEL, SHORT

CHAT = "/v1/chat/completions"
# Within which a server must be back, counted from when it was struck (docs/OPERATING.md).
BACK_S = 5


def children(pid):
    text = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(word) for word in text.split()]


def engine_pid(server):
    """The process that serves: the only child of the one that was started."""
    (pid,) = children(server.pid)
    return pid


def thread_named(pid, name):
    for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
        if (task / "comm").read_text().strip() == name:
            return int(task.name)
    raise AssertionError(f"process {pid} has no thread {name}")


@pytest.fixture
def server(servers):
    return servers.start(
        {MODEL: TINY[MODEL]},
        memory={"device_budget": "64MiB"},
        server={"supervise": "on", "grpc_port": 0},
    )


class Stream:
    """A long answer on its way; `error` is what ended it, if it did not end whole."""

    def __init__(self, server, path=CHAT, body=LONG | {"n": 16}):
        self.server, self.path, self.body = server, path, body
        self.error, self.text = None, b""
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        connection = self.server.connect()
        connection.request("POST", self.path, json.dumps(self.body | {"stream": True}))
        try:
            response = connection.getresponse()
            while piece := response.read1(65536):
                self.text += piece
        except (http.client.HTTPException, OSError) as error:
            self.error = error
        finally:
            connection.close()

    def begun(self):
        return until(lambda: self.text.count(b"data: ") > 2)

    def ended(self):
        self.thread.join(BACK_S + 20)
        return not self.thread.is_alive()


def until(check, timeout_s=20):
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if check():
            return True
        time.sleep(0.02)
    return False


def back_after(server, struck):
    """Asks until it is answered; how long after `struck` that was. Whoever connects meanwhile is
    not refused."""
    while time.monotonic() - struck < 4 * BACK_S:
        try:
            status, _, _ = server.request("POST", CHAT, SHORT, timeout_s=4 * BACK_S)
        except ConnectionRefusedError as error:
            raise AssertionError("nobody listened") from error
        except (OSError, http.client.HTTPException):
            continue  # it was taken by the server that was struck
        if status == 200:
            return time.monotonic() - struck
        assert status == 503
        time.sleep(0.05)
    raise AssertionError(server.log())


def restarts(server, why):
    return server.metric("terrace_restarts_total", why=why)


def test_a_killed_engine_process_is_back_and_its_clients_are_told(server):
    stream = Stream(server)
    assert stream.begun()
    first = engine_pid(server)
    grpc = re.search(r"gRPC +\S+:(\d+)", server.log())[1]
    struck = time.monotonic()
    os.kill(first, signal.SIGKILL)
    assert back_after(server, struck) < BACK_S
    # A stream that was cut is seen to be cut: it has no end.
    assert stream.ended() and stream.error is not None and b"[DONE]" not in stream.text
    assert engine_pid(server) != first and restarts(server, "crash") == 1
    assert "it was ended by SIGKILL" in server.log()
    # Any free port is the same one as before.
    socket.create_connection(("127.0.0.1", int(grpc)), timeout=5).close()
    assert server.stop() == 0 and not pathlib.Path(f"/proc/{first}").exists()


def test_a_process_that_stands_still_is_replaced(server):
    first = engine_pid(server)
    struck = time.monotonic()
    os.kill(first, signal.SIGSTOP)
    assert back_after(server, struck) < BACK_S
    assert restarts(server, "hang") == 1 and "no longer said that it was alive" in server.log()


def where(tid):
    """What a stopped thread is in: a "syscall", "libc", or the "program"."""
    words = pathlib.Path(f"/proc/{tid}/syscall").read_text().split()
    if words[0] != "-1":
        return "syscall"
    at = int(words[-1], 16)
    for line in pathlib.Path(f"/proc/{tid}/maps").read_text().splitlines():
        start, end = (int(word, 16) for word in line.split()[0].split("-"))
        if start <= at < end:
            return "program" if line.endswith("/terrace") else "libc"
    return "libc"


def is_stale(server):
    """Whether the engine lets nobody look at it; None if it holds the metrics themselves, which it
    does for moments without anything that could hang."""
    port = server.config["server"]["metrics_port"]
    try:
        _, body = server.get("/metrics", port=port, timeout_s=1)
    except TimeoutError:
        return None
    return float(re.search(rb"^terrace_engine_stale_seconds (\S+)$", body, re.M)[1]) > 0


def reap(tid):
    """Waits for the end of a thread that is held, whatever else is told of it before."""
    with contextlib.suppress(ChildProcessError):
        while True:
            _, status = os.waitpid(tid, 0x40000000)
            if os.WIFEXITED(status) or os.WIFSIGNALED(status):
                return


@contextlib.contextmanager
def held_thread(server, tid, locked, under_way):
    """Stops one thread of another process, as a debugger does, and lets it go in the end. `locked`:
    in a moment in which it holds a lock that those wait for who look at the engine; else in one in
    which it does not. It is let go and stopped again until it is such a moment: True, or False once
    what it should be stopped in is no longer `under_way`."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    seize, interrupt, detach = 0x4206, 0x4207, 17
    wall = 0x40000000
    for _ in range(1000):
        if libc.ptrace(seize, tid, None, None) != 0:
            why = os.strerror(ctypes.get_errno())
            pytest.skip(f"the kernel does not let a thread be stopped: {why}")
        assert libc.ptrace(interrupt, tid, None, None) == 0
        os.waitpid(tid, wall)
        # Within the C library it may hold the lock of the heap, without which nothing works.
        if where(tid) != "libc" and is_stale(server) == locked:
            time.sleep(0.1)  # what was on its way to the clients arrives
            if under_way():
                break
        libc.ptrace(detach, tid, None, None)
        if not under_way():
            yield False
            return
        time.sleep(0.005)
    else:
        raise AssertionError("no such moment was met")
    # When the process ends, its thread is gone only once it has been waited for here.
    threading.Thread(target=reap, args=(tid,), daemon=True).start()
    try:
        yield True
    finally:
        libc.ptrace(detach, tid, None, None)


class Asked:
    """Three long answers of one model on their way, two of them streams."""

    def __init__(self, server):
        self.stream = Stream(server)
        assert self.stream.begun()
        self.ollama = Stream(server, "/api/chat", {"model": MODEL, "messages": LONG["messages"]})
        self.whole = None
        self.asker = threading.Thread(target=self.ask, args=(server,))
        self.asker.start()
        assert until(lambda: server.metric("terrace_queue_length") >= 16 or not self.under_way())

    def ask(self, server):
        self.whole = server.request("POST", CHAT, LONG | {"n": 16})

    def threads(self):
        return [self.stream.thread, self.ollama.thread, self.asker]

    def under_way(self):
        return all(thread.is_alive() for thread in self.threads())

    def join(self):
        for thread in self.threads():
            thread.join(BACK_S + 20)
            assert not thread.is_alive()


@pytest.mark.parametrize(
    ("name", "locked"), [("engine", False), ("engine", True), ("engine-1", False)]
)
def test_a_thread_that_hangs_is_noticed_and_clients_are_told(servers, name, locked):
    server = servers.start(
        {MODEL: TINY[MODEL]},
        memory={"device_budget": "64MiB"},
        server={"supervise": "on"},
        device={"threads": 2},
    )
    first = engine_pid(server)
    for _ in range(10):
        asked = Asked(server)
        with held_thread(server, thread_named(first, name), locked, asked.under_way) as held:
            if held:
                assert server.get("/health")[0] == 200
                took = back_after(server, time.monotonic())
                break
        asked.join()
    assert held, "the answers always ended first"
    # The news reaches those who read a stream and those who wait for a whole answer.
    asked.join()
    assert asked.stream.error is None and b'"code":"engine_restart"' in asked.stream.text
    status, headers, body = asked.whole
    assert status == 503 and int(headers["retry-after"]) >= 1
    assert json.loads(body)["error"]["code"] == "engine_restart"
    assert b"engine hung" in asked.ollama.text
    assert took < BACK_S and restarts(server, "hang") == 1, server.log()


@pytest.mark.parametrize("name", ["engine", "engine-1"])
def test_an_engine_that_hangs_is_noticed_before_anyone_asks_it(servers, name):
    """Without work it gives a sign of life twice a second, all threads of it."""
    server = servers.start(
        {MODEL: TINY[MODEL]},
        memory={"device_budget": "64MiB"},
        server={"supervise": "on"},
        device={"threads": 2},
    )
    assert server.post(CHAT, SHORT)[0] == 200
    time.sleep(3)  # an idle engine is no hung one
    assert restarts(server, "hang") == 0
    first = engine_pid(server)
    tid = thread_named(first, name)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(0x4206, tid, None, None) != 0:
        pytest.skip("the kernel does not let a thread be stopped")
    assert libc.ptrace(0x4207, tid, None, None) == 0
    os.waitpid(tid, 0x40000000)
    struck = time.monotonic()
    threading.Thread(target=reap, args=(tid,), daemon=True).start()
    assert until(lambda: children(server.pid) not in ([], [first]), 4 * BACK_S), server.log()
    assert server.post(CHAT, SHORT)[0] == 200
    assert time.monotonic() - struck < BACK_S and restarts(server, "hang") == 1, server.log()
    assert "gives no sign of life" in server.log()


def test_a_server_that_cannot_begin_is_not_begun_again(servers):
    server = servers.start(
        {MODEL: "/none.gguf"}, server={"supervise": "on", "port": "no port"}, wait=False
    )
    with pytest.raises(server_process.ServerError, match="ended with status 1"):
        server.start()
    assert server.log().count("is not a port") == 1


def test_signals_go_to_the_server_and_its_status_comes_back(server):
    first = engine_pid(server)
    stream = Stream(server, body=LONG)
    assert stream.begun()
    server.process.terminate()
    assert server.process.wait(40) == 0
    assert stream.ended() and b"[DONE]" in stream.text
    assert not pathlib.Path(f"/proc/{first}").exists()


def test_without_its_supervisor_a_server_ends(server):
    first = engine_pid(server)
    server.stop(kill=True)
    assert until(lambda: not pathlib.Path(f"/proc/{first}").exists())
