"""Capture of a running vLLM or SGLang server, started and stopped by its own endpoints.

Both answer `POST /start_profile` and `POST /stop_profile`. vLLM has them only if it was started with a profiler, ignores the body and
answers with none (`vllm/entrypoints/serve/profile`). SGLang takes a JSON object and answers with a sentence; with `num_steps` it stops by
itself, and a later stop is an error (`sglang/srt/managers/io_struct.py`, `ProfileReqInput`). The server writes the trace itself.
"""

from __future__ import annotations

import http.client
import io
import ipaddress
import json
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple
from urllib.parse import SplitResult, urlsplit

from trace_doctor.errors import UsageError, one_line

_ANSWER_BYTES = 4096
_MOST_BYTES = 256 << 10
"""of an answer with its headers and all that goes before it (`100 Continue`): none is as long"""
_SHOWN = 120
"""characters of a server's own words"""


class Patience(NamedTuple):
    """Seconds until a server counts as hung."""

    connect: float = 10.0
    start: float = 60.0
    stop: float = 1800.0
    """it writes its trace before it answers: vLLM takes 10 minutes for some hundred requests"""


_PATIENCE = Patience()


@dataclass(frozen=True)
class ServerCapture:
    """What is known of a capture once it is over."""

    engine: str | None
    """"vLLM" or "SGLang", by its answer; None: neither"""
    seconds: float
    stopped_itself: bool = False
    """after the steps that were asked for"""


@dataclass(frozen=True)
class Server:
    """A server whose address is known to be allowed."""

    scheme: str
    host: str
    port: int
    path: str
    remote: bool
    """whether it may be another machine"""

    @property
    def url(self) -> str:
        """As it may be shown."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.path}"


class _Answer(NamedTuple):
    status: int
    text: str


class _Bounded(io.RawIOBase):
    """What a socket sends, up to `_MOST_BYTES`. Raises HTTPException at more."""

    def __init__(self, sock: socket.socket) -> None:
        self._raw = sock.makefile("rb", buffering=0)
        self._left = _MOST_BYTES

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        count = self._raw.readinto(buffer)
        self._left -= count or 0
        if self._left < 0:
            raise http.client.HTTPException("its answer does not end")
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()


class _Response(http.client.HTTPResponse):
    """http.client skips `100 Continue` as often as it comes."""

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp.close()
        self.fp = io.BufferedReader(_Bounded(sock))


class _NotReached(UsageError):
    """No request has left."""


def parse_server(url: str, *, allow_remote: bool) -> Server:
    """The server at an http or https URL without user, query and fragment. Raises UsageError for another URL, and for another machine
    unless that is allowed: whoever answers there decides what the capture holds."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise UsageError(f"--server: {error}") from None
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise UsageError("--server: the address of a server is needed: http://127.0.0.1:8000")
    if _has_more(parts) or not url.isascii() or not url.isprintable() or " " in url:
        raise UsageError("--server: an address without user, password, query and fragment is needed")
    if not allow_remote and not is_loopback(host):
        raise UsageError(f"--server: {host} may be another machine; --allow-remote permits it")
    return Server(
        parts.scheme,
        host,
        port or {"http": 80, "https": 443}[parts.scheme],
        parts.path.rstrip("/"),
        allow_remote,
    )


def _has_more(parts: SplitResult) -> bool:
    return "@" in parts.netloc or bool(parts.query or parts.fragment)


def is_loopback(host: str) -> bool:
    """Whether a host is this machine, as far as its name or address tells."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def record_server(
    server: Server,
    *,
    seconds: float,
    steps: int | None = None,
    stacks: bool = True,
    folder: str | None = None,
    say: Callable[[str], None],
    patience: Patience = _PATIENCE,
) -> ServerCapture:
    """Lets the server record for so many seconds, or until Ctrl-C. SGLang alone is told `steps`, `stacks` and the absolute `folder` to
    write to. The capture is stopped whatever happens meanwhile. Raises UsageError where none was made, or where it may go on."""
    body: dict[str, Any] = {"with_stack": stacks}
    body |= {"num_steps": steps} if steps is not None else {}
    body |= {"output_dir": folder} if folder is not None else {}
    began = time.monotonic()
    answer = _start(server, body, patience._replace(start=patience.start + (seconds if steps else 0)), say)
    try:
        engine = _engine(answer.text)
        with suppress(KeyboardInterrupt):
            say(f"{server.url} records for {seconds:g} s; Ctrl-C ends it earlier")
            time.sleep(max(seconds - (time.monotonic() - began), 0))
    finally:
        took = time.monotonic() - began
        say("stopping the capture; the server writes its trace, which can take minutes")
        try:
            stopped_itself = not _stop(server, patience, may_be_over=steps is not None and engine != "vLLM")
        except KeyboardInterrupt:
            say(_unstopped(server, "interrupted before it said that it has stopped"))
            raise
    return ServerCapture(engine, took, stopped_itself)


def _start(server: Server, body: dict[str, Any], patience: Patience, say: Callable[[str], None]) -> _Answer:
    """The answer of a server that records now. A request whose answer is lost may have started a capture, which is stopped; one
    that is refused has not: a capture that runs already is somebody else's."""
    try:
        answer = _post(server, "/start_profile", body, patience.connect, patience.start)
    except _NotReached:
        raise
    except BaseException as error:
        _stop_or_say(server, patience, say)
        if isinstance(error, (OSError, http.client.HTTPException)):
            raise UsageError(f"{server.url} did not answer as an HTTP server does: {why(error)}") from None
        raise
    if answer.status < 200:  # more was to come, and may come after a capture has begun
        _stop_or_say(server, patience, say)
        raise UsageError(f"{server.url} did not answer as an HTTP server does: its status is {answer.status}")
    if not 200 <= answer.status < 300:
        raise UsageError(f"{server.url} records nothing: {_refusal(answer)}")
    return answer


def _stop_or_say(server: Server, patience: Patience, say: Callable[[str], None]) -> None:
    """Of a capture that may have begun: a failure to stop it is only told, since another one is on its way."""
    try:
        _stop(server, patience)
    except UsageError as error:
        say(str(error))


def _refusal(answer: _Answer) -> str:
    if 300 <= answer.status < 400:
        return f"it answers with a redirect ({answer.status}), which is not followed"
    if answer.status in (404, 405):
        return f"it has no /start_profile ({answer.status}). vLLM has it if started with --profiler-config"
    if answer.status in (401, 403):
        return f"it requires a key ({answer.status}), which is not supported"
    return f"{_said(answer)}. A capture may be running already"


def _stop(server: Server, patience: Patience, *, may_be_over: bool = False) -> bool:
    """Whether the capture was stopped now; False where it was over already. Raises UsageError where it may go on."""
    try:
        answer = _post(server, "/stop_profile", {}, patience.connect, patience.stop)
    except (OSError, http.client.HTTPException, _NotReached) as error:
        reason = why(error)
    else:
        if 200 <= answer.status < 300:
            return True
        if may_be_over and answer.status == 500:
            return False
        reason = _said(answer)
    raise UsageError(_unstopped(server, reason))


def _unstopped(server: Server, reason: str) -> str:
    return f"{server.url} may still be recording: {reason}. Stop it with POST {server.path}/stop_profile"


def _said(answer: _Answer) -> str:
    words = f" {answer.text[:_SHOWN]!r}" if answer.text else ""
    return f"its answer is {answer.status}{words}"


def why(error: BaseException) -> str:
    """What went wrong with a connection, in a few words."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return one_line(getattr(error, "strerror", None) or str(error) or type(error).__name__)[:_SHOWN]


def _engine(text: str) -> str | None:
    return "vLLM" if not text else "SGLang" if text.startswith("Start profiling") else None


def _post(server: Server, path: str, body: dict[str, Any], connect: float, most_seconds: float) -> _Answer:
    """The status and the beginning of the answer. No proxy of the environment is used, no redirect followed. Raises _NotReached before
    the request is sent, then OSError or HTTPException; TimeoutError after `most_seconds`, also for a server that answers byte by byte."""
    kind = http.client.HTTPSConnection if server.scheme == "https" else http.client.HTTPConnection
    connection = kind(server.host, server.port, timeout=connect)
    connection.response_class = _Response
    try:
        sock = _connected(connection, server)
        late = threading.Event()
        timer = threading.Timer(most_seconds, _break_off, (sock, late))
        timer.start()
        try:
            sock.settimeout(most_seconds)
            connection.request(
                "POST", server.path + path, json.dumps(body), {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            text = response.read1(_ANSWER_BYTES).decode("utf-8", "replace")
        except (OSError, http.client.HTTPException):
            if not late.is_set():
                raise
        finally:
            timer.cancel()
        if late.is_set():  # a header that was cut reads as one that ended
            raise TimeoutError
        return _Answer(response.status, one_line(text))
    finally:
        connection.close()


def _connected(connection: http.client.HTTPConnection, server: Server) -> socket.socket:
    """A name can lead elsewhere than it says: what counts is where the connection has ended."""
    try:
        connection.connect()
    except (OSError, ValueError) as error:
        raise _NotReached(f"cannot reach {server.url}: {why(error)}") from None
    sock: socket.socket = connection.sock
    if not server.remote and not is_loopback(str(sock.getpeername()[0]).partition("%")[0]):
        raise _NotReached(f"{server.url} is another machine; --allow-remote permits it")
    return sock


def _break_off(sock: socket.socket, late: threading.Event) -> None:
    late.set()
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
