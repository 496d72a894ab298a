"""One page, and the trace it may hand on, served from 127.0.0.1 to whoever knows the address.

Other pages in the same browser can send requests to any port of this machine. They do not know the token in the path, and
a name of theirs that leads here is refused by its `Host`.
"""

from __future__ import annotations

import secrets
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, BinaryIO

from trace_doctor.reporters.html.policy import TRACE

_PIECE = 1 << 20
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class PageServer(ThreadingHTTPServer):
    """Answers GET of the page and of the trace, and nothing else."""

    daemon_threads = True

    def __init__(self, page: bytes, trace: BinaryIO | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.page, self.trace, self._turn = page, trace, threading.Lock()
        self.host = f"127.0.0.1:{self.server_address[1]}"
        self.root = f"/{secrets.token_urlsafe(24)}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that breaks a connection off, as when a page is loaded again, is none."""
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)

    @property
    def url(self) -> str:
        """Where the page is."""
        return f"http://{self.host}{self.root}"

    def pieces(self) -> Iterator[bytes]:
        """The trace, of the one file that was opened: what takes its name later is another."""
        at = 0
        while self.trace is not None:
            with self._turn:
                self.trace.seek(at)
                piece = self.trace.read(_PIECE)
            if not piece:
                break
            yield piece
            at += len(piece)


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    timeout = 60
    """seconds for a connection that says nothing"""

    def do_GET(self) -> None:
        """The page, or the trace."""
        server = self.server
        if self.headers.get_all("Host") != [server.host]:
            return self.send_error(403)
        if secrets.compare_digest(self.path.encode(), server.root.encode()):
            self._begin("text/html; charset=utf-8", len(server.page))
            self.wfile.write(server.page)
        elif server.trace is not None and secrets.compare_digest(
            self.path.encode(), f"{server.root}{TRACE}".encode()
        ):
            try:
                self._begin("application/octet-stream", None)
                for piece in server.pieces():
                    self.wfile.write(piece)
            except OSError:
                self.close_connection = True
        else:
            self.send_error(404)
        return None

    def _begin(self, kind: str, length: int | None) -> None:
        self.send_response(200)
        self.send_header("Content-Type", kind)
        if length is not None:
            self.send_header("Content-Length", str(length))
        self.end_headers()

    def end_headers(self) -> None:
        """With what makes a browser keep all of it to itself."""
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def version_string(self) -> str:
        """Of no interest to anyone."""
        return "trace-doctor"

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the address is a secret."""
