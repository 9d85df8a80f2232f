"""The explorer's server: on this machine only, with a token, without files; jobs that can be stopped."""

import http.client
import json
import socket
import threading
import time
from contextlib import contextmanager

import pytest

from antiphase._explore import Explorer, jobs
from antiphase._explore.settings import ExplorerSettings

SMALL = ExplorerSettings(steps=24, epochs=4.0, batch_size=20, epsilon=2.0, delta=1e-6, participation="fixed-epochs")
LONG = ExplorerSettings(steps=60_000, epochs=20.0, batch_size=500, epsilon=2.0, delta=1e-6)


@pytest.fixture(scope="module")
def explorer():
    with serving() as found:
        yield found


@contextmanager
def serving():
    explorer = Explorer()
    thread = threading.Thread(target=explorer.serve, daemon=True)
    thread.start()
    try:
        yield explorer
    finally:
        explorer.close()
        thread.join()


def request(explorer, method, path, body=None, **headers):
    """Send a request with exactly these headers, and return status, headers and body."""
    connection = http.client.HTTPConnection("127.0.0.1", explorer.port, timeout=60)
    connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
    content = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    sent = {"Host": f"127.0.0.1:{explorer.port}", "Content-Length": str(len(content))}
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    for name, value in sent.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders(content)
    reply = connection.getresponse()
    found = reply.status, dict(reply.getheaders()), reply.read()
    connection.close()
    return found


def ask(explorer, path, body, **headers):
    status, _, content = request(explorer, "POST", path, body, X_Antiphase_Token=explorer.token, **headers)
    return status, json.loads(content)


def finished(explorer, settings, start="/api/start"):
    """The final state of a request."""
    status, state = ask(explorer, start, settings.to_json())
    until = time.monotonic() + 120
    while state["state"] == "running" and time.monotonic() < until:
        time.sleep(0.05)
        status, state = ask(explorer, "/api/state", settings.to_json())
    assert status == 200
    return state


def test_the_page_and_nothing_else_is_served(explorer):
    for path, kind in (("/", "text/html"), ("/explore.js", "text/javascript"), ("/explore.css", "text/css")):
        status, headers, content = request(explorer, "GET", path)
        assert status == 200
        assert headers["Content-Type"].startswith(kind)
        assert explorer.token.encode() not in content
    for path in ("/index.html", "/../pyproject.toml", "/..%2f..%2fetc/passwd", "//etc/passwd", "/explore.js/..", "/?a"):
        assert request(explorer, "GET", path)[0] == 404


def test_every_reply_forbids_frames_scripts_from_elsewhere_and_sniffing(explorer):
    for method, path in (("GET", "/"), ("GET", "/nothing"), ("POST", "/api/start")):
        _, headers, _ = request(explorer, method, path)
        policy = headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize("token", [None, "", "x", "x" * 32])
def test_no_answer_without_the_token(explorer, token):
    for path in ("/api/start", "/api/state", "/api/stop"):
        status, _, content = request(explorer, "POST", path, SMALL.to_json(), X_Antiphase_Token=token)
        assert status == 403
        assert "token" in json.loads(content)["message"]


def test_tokens_differ_and_are_long(explorer):
    with serving() as other:
        assert other.token != explorer.token
        assert len(other.token) >= 32


@pytest.mark.parametrize("host", ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "", None])
def test_another_host_name_is_refused(explorer, host):
    """So that a name that someone points at this machine does not reach the server."""
    name = None if host is None else host.format(port=explorer.port)
    assert request(explorer, "GET", "/", Host=name)[0] == 403
    status, _ = ask(explorer, "/api/start", SMALL.to_json(), Host=name)
    assert status == 403


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "https://127.0.0.1:{port}", "http://127.0.0.1"])
def test_another_origin_is_refused_even_with_the_token(explorer, origin):
    status, _ = ask(explorer, "/api/start", SMALL.to_json(), Origin=origin.format(port=explorer.port))
    assert status == 403


def test_the_own_origin_is_answered(explorer):
    status, _ = ask(explorer, "/api/state", SMALL.to_json(), Origin=f"http://127.0.0.1:{explorer.port}")
    assert status == 200


def test_only_the_loopback_interface_is_bound(explorer):
    assert explorer._server.server_address[0] == "127.0.0.1"
    assert explorer._server.socket.family == socket.AF_INET


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"[" * 4000, b""])
def test_what_is_not_json_is_refused(explorer, body):
    status, state = ask(explorer, "/api/start", body)
    assert status == 400
    assert state["state"] == "error"


def test_long_requests_are_refused(explorer):
    assert ask(explorer, "/api/start", b" " * 5000)[0] == 413
    assert ask(explorer, "/api/start", b"", Content_Length=None)[0] in (400, 413)
    assert ask(explorer, "/api/start", b"", Content_Length="9" * 5000)[0] == 413  # Python refuses to convert this


def test_other_methods_are_refused(explorer):
    for method in ("PUT", "DELETE", "OPTIONS", "HEAD"):
        assert request(explorer, method, "/")[0] == 501


@pytest.mark.integration
def test_a_plan_arrives_in_parts_and_then_at_once(explorer):
    state = finished(explorer, SMALL)
    assert state["state"] == "done"
    assert set(state["parts"]) == {"plan", "epsilon", "steps"}
    assert state["examples"] == SMALL.examples
    status, again = ask(explorer, "/api/start", SMALL.to_json())
    assert (status, again["state"]) == (200, "done")
    assert again["parts"] == state["parts"]


def test_settings_that_cannot_be_planned_are_explained(explorer):
    impossible = ExplorerSettings(**{**SMALL.to_json(), "participation": "fixed-size"})
    state = finished(explorer, impossible)
    assert state["state"] == "error"
    assert state["message"]
    wrong = {**SMALL.to_json(), "adjacency": "<script>"}
    status, state = ask(explorer, "/api/start", wrong)
    assert status == 200
    while state["state"] == "running":
        _, state = ask(explorer, "/api/state", wrong)
    assert "adjacency" in state["message"]


@pytest.mark.parametrize("value", [[], {}], ids=repr)
@pytest.mark.parametrize("name", SMALL.to_json())
def test_settings_of_the_wrong_type_are_explained(explorer, name, value):
    for path in ("/api/start", "/api/state"):
        status, state = ask(explorer, path, {**SMALL.to_json(), name: value})
        assert (status, state["state"]) == (200, "error")


def test_asking_does_not_start_the_work(explorer):
    other = ExplorerSettings(**{**SMALL.to_json(), "steps": 23})
    _, state = ask(explorer, "/api/state", other.to_json())
    assert state["state"] == "stopped"


@pytest.mark.integration
def test_work_is_stopped_and_the_next_request_is_answered(explorer):
    _, state = ask(explorer, "/api/start", LONG.to_json())
    assert state["state"] == "running"
    time.sleep(0.5)
    assert ask(explorer, "/api/stop", {})[0] == 200
    assert ask(explorer, "/api/state", LONG.to_json())[1]["state"] == "stopped"
    again = ExplorerSettings(**{**SMALL.to_json(), "epsilon": 2.5})
    assert finished(explorer, again)["state"] == "done"


@pytest.mark.integration
def test_a_newer_request_takes_the_place_of_an_older_one(explorer):
    ask(explorer, "/api/start", LONG.to_json())
    newer = ExplorerSettings(**{**SMALL.to_json(), "epsilon": 2.6})
    assert finished(explorer, newer)["state"] == "done"
    assert ask(explorer, "/api/state", LONG.to_json())[1]["state"] == "stopped"


@pytest.mark.integration
def test_a_worker_that_does_not_listen_is_replaced(monkeypatch):
    monkeypatch.setattr(jobs, "PATIENCE", 0.3)
    with serving() as explorer:
        worker = explorer.jobs._process
        ask(explorer, "/api/start", LONG.to_json())  # still importing, so it answers nothing for longer than that
        other = ExplorerSettings(**{**SMALL.to_json(), "epsilon": 3.5})
        assert finished(explorer, other)["state"] == "done"
        assert explorer.jobs._process is not worker


@pytest.mark.integration
def test_a_worker_that_dies_is_reported_and_replaced():
    with serving() as explorer:
        ask(explorer, "/api/start", LONG.to_json())
        explorer.jobs._process.kill()
        assert "unexpectedly" in finished(explorer, LONG, "/api/state")["message"]
        assert finished(explorer, SMALL)["state"] == "done"


def test_the_worker_ends_with_the_server():
    with serving() as explorer:
        process = explorer.jobs._process
    assert process.poll() is not None
