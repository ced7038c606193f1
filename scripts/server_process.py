"""A `terrace serve` process for scripts and end-to-end tests: starts it on a free port with a
configuration given as a dict, waits until it is ready, talks to it, stops it by its process id.
Standard library only.
"""

import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent


class ServerError(Exception):
    """The server did not start, ended early or answered with an error."""


def default_binary():
    return pathlib.Path(
        os.environ.get("TERRACE_BIN") or ROOT / "build" / "release" / "bin" / "terrace"
    )


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Answer:
    """One streamed answer: its text and when its parts came, in seconds after the request."""

    def __init__(self):
        self.text = ""
        self.times = []  # Of each piece of text.
        self.usage = None
        self.finish_reason = None

    @property
    def first_token_s(self):
        return self.times[0]

    @property
    def tokens_per_s(self):
        """Of the decode alone: the tokens after the first, over the time they took."""
        tokens = self.usage["completion_tokens"]
        span = self.times[-1] - self.times[0]
        return (tokens - 1) / span if tokens > 1 and span > 0 else float("nan")


class ServerProcess:
    def __init__(self, config, folder, binary=None, launcher=()):
        """`config` is what terrace.yaml would hold; ports are chosen here unless it names them.
        `folder` gets the file, the log and, unless configured otherwise, the model store.
        `launcher` is the command that starts it, such as mpirun."""
        self.folder = pathlib.Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.config = {key: value for key, value in config.items()}
        server = {"host": "127.0.0.1", "port": free_port(), "metrics_port": free_port()}
        # Off unless a test asks for them, so that servers beside each other do not meet.
        server |= {"grpc_port": "off", "admin_port": "off"}
        # Tests know the server by its process id and its exit status.
        server |= {"supervise": "off"}
        self.config["server"] = server | self.config.get("server", {})
        store = {"disk": {"path": str(self.folder / "store")}}
        self.config.setdefault("storage", store)
        self.binary = pathlib.Path(binary or default_binary()).absolute()
        self.launcher = launcher
        self.log_path = self.folder / "server.log"
        self.process = None

    @property
    def port(self):
        return self.config["server"]["port"]

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    @property
    def pid(self):
        return self.process.pid

    def log(self):
        return self.log_path.read_text(errors="replace") if self.log_path.exists() else ""

    def start(self, timeout_s=60):
        if not self.binary.exists():
            raise ServerError(f"{self.binary} is not built: run ./dev build")
        path = self.folder / "terrace.yaml"
        path.write_text(json.dumps(self.config, indent=1) + "\n")  # JSON is YAML.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("TERRACE_")}
        with open(self.log_path, "ab") as log:
            self.process = subprocess.Popen(
                [*self.launcher, str(self.binary), "serve", "--config", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=self.folder,
            )
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise ServerError(
                    f"the server ended with status {self.process.returncode}:\n{self.log()}"
                )
            try:
                if self.get("/ready")[0] == 200:
                    return self
            except OSError:
                pass
            time.sleep(0.02)
        self.stop(kill=True)
        raise ServerError(f"the server was not ready within {timeout_s} s:\n{self.log()}")

    def stop(self, kill=False, timeout_s=40):
        """Asks the server to end (SIGTERM), or kills it; returns its exit status."""
        if self.process is None:
            return None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL if kill else signal.SIGTERM)
            try:
                self.process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return self.process.returncode

    def __enter__(self):
        return self.start()

    def __exit__(self, *error):
        self.stop()

    # ---- HTTP ----

    def connect(self, timeout_s=120, port=None):
        return http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=timeout_s)

    def request(self, method, path, body=None, headers=None, timeout_s=120, port=None):
        """(status, headers as a dict in lower case, body as bytes). `body`: bytes, or JSON."""
        headers = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers.setdefault("Content-Type", "application/json")
        connection = self.connect(timeout_s, port)
        try:
            connection.request(method, path, body, headers)
            response = connection.getresponse()
            lower = {name.lower(): value for name, value in response.getheaders()}
            return response.status, lower, response.read()
        finally:
            connection.close()

    def get(self, path, **options):
        status, _, body = self.request("GET", path, **options)
        return status, body

    def post(self, path, body, **options):
        """(status, decoded JSON)"""
        status, _, text = self.request("POST", path, body, **options)
        return status, json.loads(text)

    def stream(self, path, body, timeout_s=300):
        """Posts `body` with streaming and reads the whole answer."""
        body = body | {"stream": True, "stream_options": {"include_usage": True}}
        answer = Answer()
        connection = self.connect(timeout_s)
        try:
            start = time.monotonic()
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                text = response.read().decode(errors="replace")
                raise ServerError(f"{path} answered {response.status}: {text}")
            for line in response:
                if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                    continue
                event = json.loads(line[6:])
                if "error" in event:
                    raise ServerError(f"{path} ended with {event['error']}")
                answer.usage = event.get("usage") or answer.usage
                for choice in event["choices"]:
                    piece = choice.get("text") or choice.get("delta", {}).get("content") or ""
                    answer.finish_reason = choice.get("finish_reason") or answer.finish_reason
                    if piece:
                        answer.text += piece
                        answer.times.append(time.monotonic() - start)
        finally:
            connection.close()
        if not answer.times or answer.usage is None:
            raise ServerError(f"{path} sent no text or no usage")
        return answer

    # ---- Measuring ----

    def metrics(self):
        """{(name, ((label, value), ...)): value} of all samples that /metrics shows now."""
        status, body = self.get("/metrics", port=self.config["server"]["metrics_port"])
        if status != 200:
            raise ServerError(f"/metrics answered {status}")
        samples = {}
        for line in body.decode().splitlines():
            match = re.fullmatch(r"(\w+)(?:\{(.*)\})? (\S+)", line)
            if match:
                labels = re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[2] or "")
                samples[match[1], tuple(sorted(labels))] = float(match[3])
        return samples

    def metric(self, name, **labels):
        """The sum of the samples of `name` whose labels include these."""
        wanted = set(labels.items())
        return sum(
            v for (n, found), v in self.metrics().items() if n == name and wanted <= set(found)
        )

    def memory(self):
        """Bytes of this process: resident now, its peak, and the anonymous part, from /proc."""
        fields = {}
        for line in pathlib.Path(f"/proc/{self.pid}/status").read_text().splitlines():
            name, _, value = line.partition(":")
            if value.endswith("kB"):
                fields[name] = int(value.split()[0]) * 1024
        return {
            "resident": fields["VmRSS"],
            "peak": fields["VmHWM"],
            "anonymous": fields["RssAnon"],
        }
