"""Memory quotas of tenants: who asks for more than its own is told so, and nobody else feels it."""

import json
import threading

import mixed
import pytest
from server_process import free_port
from test_service import bearer, key_command, until

COMPLETIONS = "/v1/completions"
# Tokens before which the KV of a prompt is beyond 128 MiB, and within 256 MiB: 8 KiB a token.
LONG = 20_000


@pytest.fixture
def shared(servers, tmp_path):
    """A server with two tenants, and their keys by name."""
    server = servers.start(
        {"m": mixed.make_model(tmp_path, "m", 1, context=40960)},
        memory={"device_budget": "1GiB"},
        server={"admin_port": free_port()},
        tenants=[{"name": "modest", "memory": "128MiB"}, {"name": "large", "memory": "256MiB"}],
        kv={"disk_size": "off"},
    )
    keys = {
        name: key_command(server, "add", name, "--tenant", name)["key"]
        for name in ("modest", "large", "other")
    }
    keys["ops"] = key_command(server, "add", "ops", "--scope", "admin")["key"]
    sample = {"model": "m", "prompt": "a"}
    assert until(lambda: server.post(COMPLETIONS, sample | {"max_tokens": 1})[0] == 401)
    return server, {name: bearer(key) for name, key in keys.items()}


def prompt_of(server, headers, tokens):
    """A text of about so many tokens, not fewer."""
    words = "the river goes where the land lets it go and the land goes with it ".split()
    text = " ".join(words * 20)
    status, told = server.post("/tokenize", {"model": "m", "prompt": text}, headers=headers)
    assert status == 200, told
    return " ".join(words * (20 * (tokens // len(told["tokens"]) + 1)))


def test_a_prompt_beyond_the_quota_is_refused_with_who_holds_what_and_others_go_on(shared):
    server, headers = shared
    long = {"model": "m", "prompt": prompt_of(server, headers["modest"], LONG), "max_tokens": 1}
    short = {"model": "m", "prompt": "where to", "max_tokens": 4, "temperature": 0}
    # One of its own is at work meanwhile: it holds some of the quota.
    connection = server.connect()
    body = json.dumps(short | {"max_tokens": 20_000, "stream": True})
    connection.request("POST", COMPLETIONS, body, headers["modest"])
    assert connection.getresponse().readline().startswith(b"data: ")

    status, told = server.post(COMPLETIONS, long, headers=headers["modest"])
    message = told["error"]["message"]
    assert status in (429, 503), told
    assert "tenant 'modest'" in message and "128.0 MiB" in message, message
    assert "1 running requests and" in message and "hold 0" not in message, message
    connection.close()

    # The same prompt fits what another tenant has; while it is read the others are served.
    answers = []

    def read_long():
        asking = server.connect()
        asking.request("POST", COMPLETIONS, json.dumps(long | {"stream": True}), headers["large"])
        answers.append(asking.getresponse().status)
        asking.close()

    thread = threading.Thread(target=read_long)
    thread.start()
    for name in ("modest", "other", "large"):
        status, told = server.post(COMPLETIONS, short, headers=headers[name])
        assert status == 200 and told["usage"]["completion_tokens"] > 0, (name, told)
    thread.join()
    assert answers == [200]


def test_a_tenant_at_its_quota_evicts_its_own_and_never_anothers(shared):
    server, headers = shared
    quota, admin_port = 128 << 20, server.config["server"]["admin_port"]
    most = {"modest": 0, "other": 0}
    stop = threading.Event()

    def held(tenant):
        status, body = server.get("/admin/state", headers=headers["ops"], port=admin_port)
        assert status == 200, body
        device = json.loads(body)["tiers"][0]
        return sum(
            line["bytes"]
            for line in device["lines"]
            if (line["kind"], line["tenant"]) == ("kv", tenant)
        )

    def watch():
        while not stop.is_set():
            for tenant in most:
                most[tenant] = max(most[tenant], held(tenant))
            stop.wait(0.02)

    def ask(name, prompt):
        """How many of the prompt's tokens there are, and were found."""
        body = {"model": "m", "prompt": prompt, "max_tokens": 1}
        status, told = server.post(COMPLETIONS, body, headers=headers[name])
        assert status == 200, told
        usage = told["usage"]
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"]

    def found(name, prompt):
        tokens, cached = ask(name, prompt)
        return cached >= tokens - 32  # but for the last blocks

    # Of which the quota holds three, with the KV of the first tokens of a fourth.
    own = [f"number {i} " * 3 + prompt_of(server, headers["modest"], 4500) for i in range(5)]
    others = ["another's " + prompt_of(server, headers["other"], 2000), "short " * 100]
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        for prompt in others:
            assert ask("other", prompt)[1] == 0
        before = held("other")
        for prompt in own:
            assert ask("modest", prompt)[1] == 0, "nothing is alike"
    finally:
        stop.set()
        watcher.join()
    assert quota - (48 << 20) < most["modest"] <= quota, most
    assert held("other") == before == most["other"], (before, most)
    for prompt in others:
        assert found("other", prompt), "its KV made room for another tenant's"
    # Its own gave way, the oldest first.
    assert found("modest", own[-1])
    assert not found("modest", own[0])
