#!/usr/bin/env python3
"""The other tenants of `./dev bench mixed`: asks for streamed answers at set moments, or one after
the other, and tells when their first tokens and their ends came.

A process of its own with one thread that looks at its connections some fifty times a second, so
that it takes next to nothing of the processors that it shares with the server: times are as coarse
as that. Reads a plan as JSON from its input, writes what came as JSON. Standard library only.
"""

import json
import socket
import sys
import time

LOOK_S = 0.02


class Stream:
    """One request on a connection of its own."""

    def __init__(self, port, request):
        body = json.dumps(request["body"]).encode()
        head = f"POST {request['path']} HTTP/1.1\r\nHost: load\r\nConnection: close\r\n"
        for name, value in request["headers"].items():
            head += f"{name}: {value}\r\n"
        head += f"Content-Length: {len(body)}\r\n\r\n"
        self.request = request
        self.start = time.monotonic()
        self.first = self.end = None
        self.status, self.text = 0, b""
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.sendall(head.encode() + body)
        self.socket.setblocking(False)

    def look(self):
        """Reads what there is; true once the answer has ended."""
        while True:
            try:
                piece = self.socket.recv(1 << 16)
            except BlockingIOError:
                return False
            now = time.monotonic()
            if not piece:
                self.end = now
                self.socket.close()
                return True
            if self.status == 0:
                self.text += piece
                if b"\r\n" in self.text:
                    self.status = int(self.text.split(None, 2)[1])
            if self.first is None and b"data: " in piece:
                self.first = now
            # Only the end is kept: an error is told there.
            self.text = (self.text + piece)[-400:]

    def result(self):
        refused = self.status in (429, 503)
        error = None
        if not refused and (self.status != 200 or b"[DONE]" not in self.text):
            error = f"{self.status}: {self.text.decode(errors='replace')}"
        return {
            "name": self.request["name"],
            "refused": refused,
            "error": error,
            "first": None if refused or self.first is None else self.first - self.start,
            "total": self.end - self.start,
        }


def main():
    plan = json.load(sys.stdin)
    print("ready", flush=True)
    begin = time.monotonic()
    to_come = sorted(plan["requests"], key=lambda each: each["at"])
    open_streams, results = [], []
    until = begin + plan["seconds"]
    while to_come or open_streams:
        now = time.monotonic()
        while to_come and begin + to_come[0]["at"] <= now:
            open_streams.append(Stream(plan["port"], to_come.pop(0)))
        for stream in list(open_streams):
            if not stream.look():
                continue
            open_streams.remove(stream)
            results.append(stream.result())
            if stream.request.get("again") and now < until:
                open_streams.append(Stream(plan["port"], stream.request))
        time.sleep(LOOK_S)
    json.dump({"seconds": time.monotonic() - begin, "results": results}, sys.stdout)


if __name__ == "__main__":
    main()
