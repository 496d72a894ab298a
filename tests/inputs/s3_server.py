"""A server that speaks as much of the S3 protocol as reading takes: lists, heads, and objects or ranges of them."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

PAGE = 3
"""keys of one list: the rest is asked for with its token"""


class S3(ThreadingHTTPServer):
    """The objects of one bucket, by key."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Request)
        self.objects: dict[str, bytes] = {}
        self.denied: set[str] = set()
        self.cut: set[str] = set()
        """keys whose connection ends in the middle when they are read as a whole"""
        self.replaced: dict[str, bytes] = {}
        """what an object is from when it has been read as a whole"""
        self.whole: list[str] = []
        """keys that were read as a whole"""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def s3_server() -> Iterator[S3]:
    """Runs while the context does."""
    with S3() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


class _Request(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: S3

    def log_message(self, *_: object) -> None: ...

    def do_HEAD(self) -> None:
        self._object(body=False)

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        if "list-type" in query:
            self._list(query.get("prefix", [""])[0], query.get("continuation-token", [""])[0])
        else:
            self._object(body=True)

    def _list(self, prefix: str, after: str) -> None:
        keys = sorted(k for k in self.server.objects if k.startswith(prefix) and k > after)
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
            f"<ETag>{_etag(self.server.objects[key])}</ETag><Size>{len(self.server.objects[key])}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
            for key in keys[:PAGE]
        )
        more = len(keys) > PAGE
        token = f"<NextContinuationToken>{escape(keys[PAGE - 1])}</NextContinuationToken>" if more else ""
        self._answer(
            200,
            f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>bucket</Name><Prefix>{escape(prefix)}'
            f"</Prefix><IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}</ListBucketResult>".encode(),
            {"Content-Type": "application/xml"},
        )

    def _object(self, *, body: bool) -> None:
        key = unquote(urlsplit(self.path).path).removeprefix("/bucket/")
        data = self.server.objects.get(key)
        if data is None:
            self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>" if body else b"", {})
            return
        headers = {"ETag": _etag(data), "Last-Modified": formatdate(1.7e9, usegmt=True)}
        first, last = 0, len(data) - 1
        if body and (asked := self.headers.get("Range")):
            begin, _, end = asked.removeprefix("bytes=").partition("-")
            first, last = int(begin), min(int(end or last), last)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        whole = body and (first, last) == (0, len(data) - 1)
        if whole and key in self.server.denied:
            self._answer(403, b"<Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>", {})
            return
        if whole:
            self.server.whole.append(key)
            self.server.objects[key] = self.server.replaced.get(key, data)
        status = 206 if "Content-Range" in headers else 200
        self._answer(status, data[first : last + 1], headers, body=body, cut=whole and key in self.server.cut)

    def _answer(
        self, status: int, data: bytes, headers: dict[str, str], *, body: bool = True, cut: bool = False
    ) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data[: len(data) // 2] if cut else data)
            self.close_connection = cut


def _etag(data: bytes) -> str:
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
