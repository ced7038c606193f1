"""A real S3 server for tests: Ceph's RADOS Gateway over one monitor and one store in memory, in a
folder of its own, on free loopback ports. Packages (Debian): radosgw, ceph-mon, ceph-osd.

As a program it reads commands, one a line, words escaped as in URLs, and answers each with a line
(`ok WORD...` or `error MESSAGE`); it stops what it started when its input ends:

    bucket NAME [versioned]      makes a bucket
    put BUCKET KEY FILE          one request; answers with the ETag
    upload BUCKET KEY FILE       in parts of 5 MiB, as large files come; answers with the ETag
    fill BUCKET PREFIX N         puts PREFIX0000 to PREFIX and N - 1, with the four digits in it
    delete BUCKET KEY
    session                      temporary credentials: access key, secret key, token

Its first line is `ok ENDPOINT ACCESS_KEY SECRET_KEY VERSION TLS_ENDPOINT CERTIFICATE_FILE`.
"""

import concurrent.futures
import datetime
import hashlib
import hmac
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.parse
import uuid

from server_process import free_port

PROGRAMS = ["ceph", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin"]
PART_BYTES = 5 << 20

CONFIG = """[global]
fsid = {fsid}
mon host = v1:127.0.0.1:{mon_port}/0
public addr = 127.0.0.1
cluster addr = 127.0.0.1
ms bind ipv6 = false
auth cluster required = none
auth service required = none
auth client required = none
run dir = {folder}
admin socket = {folder}/$name.asok
log file = {folder}/$name.log
pid file = {folder}/$name.pid
mon data = {folder}/mon
osd data = {folder}/osd
osd objectstore = memstore
memstore device bytes = 2147483648
osd crush chooseleaf type = 0
osd crush update on start = false
osd class update on start = false
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 1
mon allow pool size one = true
paxos propose interval = 0.05
paxos min wait = 0.01
rgw data = {folder}/rgw
rgw frontends = beast endpoint=127.0.0.1:{port} {tls}
rgw dns name = localhost
rgw thread pool size = 64
rgw s3 auth use sts = true
rgw sts key = abcdefghijklmnop
"""


def installed():
    return all(shutil.which(name) for name in PROGRAMS)


def escape(text, safe=""):
    return urllib.parse.quote(text, safe=safe + "-_.~")


class Refused(Exception):
    """An answer that is no success: its status and text."""


class CephGateway:
    """Started by the constructor (about 3 s), stopped by stop()."""

    access_key = "terrace-test"
    secret_key = "secret/of+the=test"

    def __init__(self):
        if not installed():
            raise FileNotFoundError("radosgw, ceph-mon and ceph-osd are not installed")
        for left in [2, 1, 0]:  # another process may take a port that was free
            try:
                self._start()
                return
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                self.stop()
                if left == 0:
                    raise
                print(f"starting radosgw again: {error}", file=sys.stderr)
            except BaseException:
                self.stop()
                raise

    def _run(self, program, *arguments):
        done = subprocess.run(
            [program, "-c", self.config, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} {arguments[0]}: {done.stderr.strip()[-2000:]}")
        return done.stdout

    def _serve(self, program, *arguments):
        with open(self.folder / f"{program}.out", "wb") as out:
            self.processes.append(
                subprocess.Popen(
                    [program, "-c", self.config, *arguments, "-f"],
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=out,
                    start_new_session=True,
                )
            )

    def _certify(self):
        """The option of the gateway's front end."""
        key = self.folder / "key.pem"
        command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext"
        names = "subjectAltName=DNS:localhost,DNS:models.localhost"
        files = ["-keyout", str(key), "-out", str(self.certificate)]
        subprocess.run([*command.split(), names, *files], check=True, capture_output=True)
        port = self.tls_endpoint.rsplit(":", 1)[1]
        where = f"ssl_endpoint=127.0.0.1:{port}"
        return f"{where} ssl_certificate={self.certificate} ssl_private_key={key}"

    def _start(self):
        self.folder = pathlib.Path(tempfile.mkdtemp(prefix="ceph-"))
        self.config = self.folder / "ceph.conf"
        self.processes = []
        self.port = free_port()
        self.host = f"127.0.0.1:{self.port}"
        self.endpoint = f"http://{self.host}"
        self.tls_endpoint = f"https://localhost:{free_port()}"
        self.certificate = self.folder / "certificate.pem"  # of localhost and models.localhost
        fsid, osd = str(uuid.uuid4()), str(uuid.uuid4())
        mon_port = free_port()
        ports = {"mon_port": mon_port, "port": self.port, "tls": self._certify()}
        self.config.write_text(CONFIG.format(fsid=fsid, folder=self.folder, **ports))
        for name in ["mon", "osd", "rgw"]:
            (self.folder / name).mkdir()
        monitors = self.folder / "monmap"
        address = f"[v1:127.0.0.1:{mon_port}]"
        self._run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", address, str(monitors))
        self._run("ceph-mon", "-i", "a", "--mkfs", "--monmap", str(monitors))
        self._serve("ceph-mon", "-i", "a")
        # Its place in the map is set here: one that sets it itself ends if the monitor is slow.
        place = ["add", "osd.0", "1.0", "host=local", "root=default"]
        for command in [["new", osd], ["crush", *place]]:
            self._run("ceph", "--connect-timeout", "60", "osd", *command)
        self._run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd)
        self._serve("ceph-osd", "-i", "0")
        keys = ["--access-key", self.access_key, "--secret-key", self.secret_key]
        self._run("radosgw-admin", "user", "create", "--uid=test", "--display-name=test", *keys)
        self._run("radosgw-admin", "caps", "add", "--uid=test", "--caps=user-policy=*")
        self._serve("radosgw", "-n", "client.rgw")
        until = time.monotonic() + 120
        while True:
            try:
                self.request("GET", "/")
                break
            except OSError:
                gone = [each.args[0] for each in self.processes if each.poll() is not None]
                if gone or time.monotonic() > until:
                    out = (self.folder / "radosgw.out").read_text()[-2000:]
                    raise RuntimeError(f"{gone or 'radosgw'} did not start: {out}") from None
                time.sleep(0.05)
        self.version = re.search(r"\d+\.\d+\.\d+", self._run("radosgw", "--version"))[0]

    def stop(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGKILL)
            process.wait()
        self.processes = []
        shutil.rmtree(self.folder, ignore_errors=True)

    # One request, signed with version 4; (status, headers, body), Refused unless it succeeded.
    def request(self, method, path, query=(), body=b"", service="s3"):
        now = datetime.datetime.now(datetime.timezone.utc)
        stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
        digest = hashlib.sha256(body).hexdigest()
        asked = "&".join(sorted(f"{escape(k)}={escape(v)}" for k, v in query))
        headers = {"host": self.host, "x-amz-content-sha256": digest, "x-amz-date": stamp}
        names = ";".join(headers)
        lines = "".join(f"{name}:{value}\n" for name, value in headers.items())
        whole = "\n".join([method, path, asked, lines, names, digest])
        scope = f"{day}/us-east-1/{service}/aws4_request"
        to_sign = "\n".join(
            ["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(whole.encode()).hexdigest()]
        )
        key = ("AWS4" + self.secret_key).encode()
        for part in scope.split("/"):
            key = hmac.new(key, part.encode(), "sha256").digest()
        signature = hmac.new(key, to_sign.encode(), "sha256").hexdigest()
        headers["authorization"] = (
            f"AWS4-HMAC-SHA256 Credential={self.access_key}/{scope}, "
            f"SignedHeaders={names}, Signature={signature}"
        )
        connection = http.client.HTTPConnection(self.host, timeout=60)
        try:
            connection.request(method, path + (f"?{asked}" if asked else ""), body, headers)
            answer = connection.getresponse()
            text = answer.read()
            if answer.status >= 300:
                raise Refused(f"{method} {path}: {answer.status} {text.decode()[:500]}")
            return answer.status, answer.headers, text
        finally:
            connection.close()

    def bucket(self, name, versioned=False):
        self.request("PUT", f"/{name}")
        if versioned:
            text = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
            self.request("PUT", f"/{name}", [("versioning", "")], text.encode())

    def put(self, bucket, key, body):
        """The ETag."""
        return self.request("PUT", f"/{bucket}/{escape(key, '/')}", body=body)[1]["ETag"]

    def upload(self, bucket, key, body):
        """In parts; the ETag."""
        path = f"/{bucket}/{escape(key, '/')}"
        _, _, text = self.request("POST", path, [("uploads", "")])
        upload = re.search(r"<UploadId>(.*?)</UploadId>", text.decode())[1]
        parts = ""
        for number, first in enumerate(range(0, len(body), PART_BYTES), start=1):
            query = [("partNumber", str(number)), ("uploadId", upload)]
            part = self.request("PUT", path, query, body[first : first + PART_BYTES])
            tag = part[1]["ETag"]
            parts += f"<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>"
        whole = f"<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>"
        self.request("POST", path, [("uploadId", upload)], whole.encode())
        return self.request("HEAD", path)[1]["ETag"]

    def delete(self, bucket, key):
        self.request("DELETE", f"/{bucket}/{escape(key, '/')}")

    def session(self):
        """Temporary credentials: (access key, secret key, token)."""

        def ask(service, **fields):
            body = urllib.parse.urlencode(fields).encode()
            return self.request("POST", "/", body=body, service=service)[2].decode()

        allowed = {"Effect": "Allow", "Action": ["sts:GetSessionToken"], "Resource": ["*"]}
        policy = json.dumps({"Version": "2012-10-17", "Statement": [allowed]})
        whose = {"UserName": "test", "PolicyName": "sessions", "PolicyDocument": policy}
        ask("iam", Action="PutUserPolicy", Version="2010-05-08", **whose)
        text = ask("sts", Action="GetSessionToken", Version="2011-06-15", DurationSeconds="900")
        return tuple(
            re.search(f"<{name}>(.*?)</{name}>", text)[1]
            for name in ["AccessKeyId", "SecretAccessKey", "SessionToken"]
        )


def obey(gateway, command, *words):
    if command == "bucket":
        gateway.bucket(words[0], versioned=words[1:] == ("versioned",))
        return ()
    if command in ("put", "upload"):
        store = gateway.put if command == "put" else gateway.upload
        return (store(words[0], words[1], pathlib.Path(words[2]).read_bytes()),)
    if command == "fill":
        with concurrent.futures.ThreadPoolExecutor(16) as several:
            numbers = [f"{i:04}" for i in range(int(words[2]))]
            list(several.map(lambda i: gateway.put(words[0], words[1] + i, i.encode()), numbers))
        return ()
    if command == "delete":
        return gateway.delete(*words) or ()
    if command == "session":
        return gateway.session()
    raise ValueError(f"no command {command}")


def main():
    os.setpgid(0, 0)  # what ends the test by a signal from a terminal leaves the clean-up to it

    def say(*words):
        print(*(escape(word, "/:") for word in words), flush=True)

    gateway = CephGateway()
    try:
        keys = [gateway.access_key, gateway.secret_key]
        tls = [gateway.tls_endpoint, str(gateway.certificate)]
        say("ok", gateway.endpoint, *keys, gateway.version, *tls)
        for line in sys.stdin:
            try:
                words = [urllib.parse.unquote(word) for word in line.split()]
                say("ok", *obey(gateway, *words))
            except Exception as error:  # told to who asked, who fails the test by it
                say("error", repr(error))
    finally:
        gateway.stop()


if __name__ == "__main__":
    main()
