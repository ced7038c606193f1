"""A small S3-like server for tests: objects in memory by GET and HEAD with ranges and ETags, and
faults on request. It checks no signatures.
"""

import contextlib
import hashlib
import http.server
import re
import threading
import time


class ObjectServer:
    """`objects`: path to bytes. `fault`: called with (path, first byte; None for a HEAD), returns
    None, a status to refuse with, or one of "reset", "short", "wrong", "stall" or "slow":
    half of the body, then the rest once `gate` is set, at most 60 s later."""

    def __init__(self):
        self.objects = {}
        self.fault = lambda path, first: None
        self.gets = []  # (path, first byte)
        self.gate = threading.Event()
        self.lock = threading.Lock()
        owner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                owner.answer(self, True)

            def do_HEAD(self):
                owner.answer(self, False)

            def log_message(self, *arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, request, with_body):
        path = request.path.split("?")[0]
        match = re.fullmatch(r"bytes=(\d+)-(\d*)", request.headers.get("Range", ""))
        first = int(match[1]) if match else 0
        body = self.objects.get(path)
        with self.lock:
            self.gets.append((path, first))
            fault = self.fault(path, first if with_body else None)
        if body is None:
            fault = fault or 404
        if isinstance(fault, int):
            text = b"<Error><Code>Fault</Code></Error>"
            request.send_response(fault)
            request.send_header("Content-Length", str(len(text)))
            request.end_headers()
            if with_body:
                request.wfile.write(text)
            return
        last = min(int(match[2]) if match and match[2] else len(body) - 1, len(body) - 1)
        piece = body[first : last + 1]
        request.send_response(206 if match else 200)
        request.send_header("ETag", f'"{hashlib.md5(body).hexdigest()}"')
        request.send_header("Accept-Ranges", "bytes")
        request.send_header("Content-Length", str(len(piece)))
        if match:
            request.send_header("Content-Range", f"bytes {first}-{last}/{len(body)}")
        request.end_headers()
        if not with_body:
            return
        if fault == "wrong":
            piece = piece[:-1] + bytes([piece[-1] ^ 1])
        if fault in ("reset", "short", "stall"):
            request.wfile.write(piece[: len(piece) // 2])
            request.wfile.flush()
            if fault == "stall":
                time.sleep(30)
            request.close_connection = True
            request.connection.close()
            return
        if fault == "slow":
            request.wfile.write(piece[: len(piece) // 2])
            request.wfile.flush()
            self.gate.wait(60)
            piece = piece[len(piece) // 2 :]
        with contextlib.suppress(ConnectionError):  # who did not wait
            request.wfile.write(piece)

    def stop(self):
        self.gate.set()
        self.server.shutdown()
        self.server.server_close()
