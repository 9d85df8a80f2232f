"""A web server on the loopback interface that serves the page and answers its requests.

Anyone can fetch the page, its script and its style sheet, which contain no secrets. Every other request needs the
token, a random string. The token is the part of the printed address after #, which browsers do not send anywhere. The
page sends the token in a custom header, which no other site can set. The Host header must name this server, which
prevents DNS rebinding. Requests cannot choose which files are read.
"""

from __future__ import annotations

import hmac
import json
import secrets
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any

from antiphase._errors import AntiphaseError
from antiphase._explore.jobs import Jobs
from antiphase._explore.settings import ExplorerSettings
from antiphase._report import layout_style, page_style

HOST = "127.0.0.1"
MAX_BODY = 4096
SECONDS = 30.0  # time limit for reading a request
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Explorer:
    """The server of the explorer, bound to the loopback interface.

    Args:
        port: port to listen on; 0 for any free port.
    """

    def __init__(self, port: int = 0) -> None:
        self.token = secrets.token_urlsafe(24)
        self._server = ThreadingHTTPServer((HOST, port), _Handler)
        self._server.daemon_threads = True
        self.port: int = self._server.server_address[1]
        self._server.explorer = self  # type: ignore[attr-defined]  # for the handler
        self.pages = _pages()
        self.jobs = Jobs()

    @property
    def address(self) -> str:
        """The address to open, with the token."""
        return f"http://{HOST}:{self.port}/#{self.token}"

    @property
    def names(self) -> set[str]:
        """The values of the Host header that are accepted."""
        return {f"{HOST}:{self.port}", f"localhost:{self.port}"}

    def serve(self) -> None:
        """Answer requests until another thread calls `close`, or an exception such as `KeyboardInterrupt` is raised."""
        self._server.serve_forever(poll_interval=0.2)

    def close(self) -> None:
        """Stop the server and the planning process."""
        self._server.shutdown()
        self.release()

    def release(self) -> None:
        """Free the port and end the planning process. Call this method after `serve` has returned."""
        self._server.server_close()
        self.jobs.close()

    def answer(self, path: str, data: Any) -> dict[str, Any]:
        """Return the answer to a request of the page. Raises `AntiphaseError` for settings that are not valid."""
        if path == "/api/stop":
            self.jobs.stop()
            return {"state": "stopped", "parts": {}}
        settings = ExplorerSettings.from_json(data)
        state = self.jobs.start(settings) if path == "/api/start" else self.jobs.state(settings)
        return {**state, "examples": settings.examples}


def _pages() -> dict[str, tuple[str, bytes]]:
    """Return everything that can be fetched without the token, as a dict from path to (type, content)."""
    folder = files("antiphase._explore") / "page"
    style = page_style() + layout_style() + (folder / "explore.css").read_text("utf-8")
    return {
        "/": ("text/html; charset=utf-8", (folder / "index.html").read_bytes()),
        "/explore.js": ("text/javascript; charset=utf-8", (folder / "explore.js").read_bytes()),
        "/explore.css": ("text/css; charset=utf-8", style.encode()),
    }


class _Handler(BaseHTTPRequestHandler):
    """Answers one connection. Serves only the files of the page and the three requests that the page makes."""

    protocol_version = "HTTP/1.1"
    timeout = SECONDS

    @property
    def explorer(self) -> Explorer:
        found: Explorer = self.server.explorer  # type: ignore[attr-defined]
        return found

    def do_GET(self) -> None:
        """Serve one of the files of the page."""
        if not self._is_local():
            return
        page = self.explorer.pages.get(self.path)
        if page is None:
            self._refuse(404, "There is no such page.")
        else:
            self._reply(200, *page)

    def do_POST(self) -> None:
        """Answer a request of the page."""
        if not self._is_local():
            return
        given = self.headers.get("X-Antiphase-Token", "")
        if not hmac.compare_digest(given.encode(), self.explorer.token.encode()):
            self._refuse(403, "The token is missing or wrong. Open the address that antiphase explore printed.")
            return
        if self.path not in ("/api/start", "/api/state", "/api/stop"):
            self._refuse(404, "There is no such request.")
            return
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal() or len(length) > len(str(MAX_BODY)) or int(length) > MAX_BODY:
            self._refuse(413, f"A request must state its length, at most {MAX_BODY} bytes.")
            return
        try:
            data = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            self._refuse(400, "The request is not JSON.")
            return
        try:
            self._reply_json(200, self.explorer.answer(self.path, data))
        except AntiphaseError as error:
            self._reply_json(200, {"state": "error", "parts": {}, "message": error.message, "hint": error.hint})

    def _is_local(self) -> bool:
        """Return True if a request comes from this server's own page. Otherwise refuse the request and return False."""
        host, origin = self.headers.get("Host", ""), self.headers.get("Origin")
        names = self.explorer.names
        if host not in names or (origin is not None and origin not in {f"http://{name}" for name in names}):
            self._refuse(403, "This server answers only its own page, on this machine.")
            return False
        return True

    def _refuse(self, status: int, message: str) -> None:
        self.close_connection = True  # the body, if any, was not read
        self._reply_json(status, {"state": "error", "parts": {}, "message": message, "hint": ""})

    def _reply_json(self, status: int, data: dict[str, Any]) -> None:
        self._reply(status, "application/json", json.dumps(data, allow_nan=False).encode())

    def _reply(self, status: int, kind: str, content: bytes) -> None:
        self.send_response(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def version_string(self) -> str:
        """Return the value of the Server header."""
        return "antiphase"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing, so that the terminal shows only the address."""
