"""`trace-doctor record --server`, against a server on this machine that answers as vLLM, as SGLang, or as nobody should."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from warm_commands import FRESH, warm

from trace_doctor.errors import UsageError
from trace_doctor.recording.live.server import Patience, ServerCapture, parse_server, record_server
from trace_doctor.testing import RunBuilder

IMPATIENT = Patience(connect=2.0, start=0.5, stop=0.5)


class StandIn(ThreadingHTTPServer):
    """Keeps what it was asked for. SGLang's grammar: a sentence, an error for what is not in progress; vLLM's: no body."""

    daemon_threads = True

    def __init__(self, engine: str, codes: dict[str, int] | None = None) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.engine, self.codes = engine, codes or {}
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.recording = False
        self.writes = True
        self.started = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.asked]


class _Handler(BaseHTTPRequestHandler):
    server: StandIn

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        server = self.server
        server.asked.append((self.path, body))
        starts = self.path.endswith("/start_profile")
        code = server.codes.get(self.path.rpartition("/")[2], 200)
        text = b""
        if server.engine == "SGLang":
            if code == 200 and server.recording == starts:
                code = 500
            text = b"Start profiling.\n" if starts else b"Stop profiling. This will take some time.\n"
            if starts and self.server.writes and (folder := body.get("output_dir")):
                made = RunBuilder()
                for _ in range(4):
                    with made.step(), made.op("aten::mm"):
                        made.launch(100)
                made.write(Path(folder) / "1-TP-0.trace.json.gz")
        if code == 200:
            server.recording = starts and "num_steps" not in body
        self.send_response(code)
        if 300 <= code < 400:
            self.send_header("Location", server.url + "/elsewhere")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
        if starts:
            server.started.set()

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def stand_in() -> Iterator[Callable[..., StandIn]]:
    servers: list[StandIn] = []

    def start(engine: str, **codes: int) -> StandIn:
        servers.append(StandIn(engine, codes))
        return servers[-1]

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def record(*arguments: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*warm(), "record", *arguments], cwd=cwd, capture_output=True, text=True,
        env={**os.environ, **environment},
    )  # fmt: skip


def captured(url: str, **options: Any) -> ServerCapture:
    server = parse_server(url, allow_remote=False)
    return record_server(
        server, **{"seconds": 0.05, "say": lambda line: None, "patience": IMPATIENT, **options}
    )


def test_vllm_is_started_and_stopped_and_its_folder_named(
    stand_in: Callable[..., StandIn], tmp_path: Path
) -> None:
    server = stand_in("vLLM")
    done = record("--server", server.url, "--max-seconds", "0.1", "--max-steps", "5", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert server.paths == ["/start_profile", "/stop_profile"]
    assert "torch_profiler_dir of its --profiler-config" in " ".join(done.stderr.split())
    assert "vLLM ignores --max-steps" in done.stderr
    assert not list(tmp_path.iterdir()), "the server writes the trace, not we"


def test_sglang_writes_where_it_is_told_and_the_next_command_works(
    stand_in: Callable[..., StandIn], tmp_path: Path
) -> None:
    server = stand_in("SGLang")
    done = record(
        "--server", server.url + "/", "--max-seconds", "0.1", "--no-stacks", "--out", "logs", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert server.paths == ["/start_profile", "/stop_profile"]
    (folder,) = (tmp_path / "logs").iterdir()
    assert server.asked[0][1] == {"with_stack": False, "output_dir": str(folder)}
    following = re.search(r"^next: trace-doctor (.+)$", done.stderr, re.M)
    assert following
    assert subprocess.run([*warm(), *following[1].split(), "-o", "json=-"], cwd=tmp_path).returncode == 0


def test_a_folder_that_sglang_may_still_write_to_stays(
    stand_in: Callable[..., StandIn], tmp_path: Path
) -> None:
    """It would fail where that is gone."""
    server = stand_in("SGLang")
    server.writes = False
    done = record("--server", server.url, "--max-seconds", "0.05", "--out", "logs", cwd=tmp_path)
    assert done.returncode == 0
    assert "is empty" in " ".join(done.stderr.split())
    assert len(list((tmp_path / "logs").iterdir())) == 1


def test_vllm_leaves_no_empty_folder(stand_in: Callable[..., StandIn], tmp_path: Path) -> None:
    done = record("--server", stand_in("vLLM").url, "--max-seconds", "0.05", "--out", "logs", cwd=tmp_path)
    assert done.returncode == 0
    assert "vLLM ignores --out" in done.stderr
    assert not list((tmp_path / "logs").iterdir())


def test_sglang_stops_itself_after_the_steps(stand_in: Callable[..., StandIn]) -> None:
    """Its answer to the stop is then an error, which is none."""
    server = stand_in("SGLang")
    capture = captured(server.url, steps=10)
    assert capture.stopped_itself
    assert server.asked[0][1]["num_steps"] == 10


def test_a_capture_of_somebody_else_goes_on(stand_in: Callable[..., StandIn]) -> None:
    server = stand_in("SGLang")
    server.recording = True
    with pytest.raises(UsageError, match="may be running already"):
        captured(server.url)
    assert server.paths == ["/start_profile"], "not stopped: it is not ours"


@pytest.mark.parametrize(
    ("codes", "why"),
    [
        ({"start_profile": 307}, "redirect .307., which is not followed"),
        ({"start_profile": 404}, "--profiler-config"),
        ({"start_profile": 401}, "requires a key"),
        ({"stop_profile": 302}, "may still be recording: its answer is 302"),
        ({"stop_profile": 500}, "may still be recording: its answer is 500"),
    ],
)
def test_another_code_is_no_success(
    stand_in: Callable[..., StandIn], codes: dict[str, int], why: str, tmp_path: Path
) -> None:
    server = stand_in("vLLM", **codes)
    done = record("--server", server.url, "--max-seconds", "0.05", cwd=tmp_path)
    assert done.returncode == 125
    assert re.search(why, done.stderr), done.stderr
    assert "/elsewhere" not in server.paths


def test_ctrl_c_ends_the_capture_and_sigterm_too(stand_in: Callable[..., StandIn], tmp_path: Path) -> None:
    for number, code in ((signal.SIGINT, 0), (signal.SIGTERM, 143)):
        server = stand_in("vLLM")
        process = subprocess.Popen(
            [*FRESH, "record", "--server", server.url, "--max-seconds", "60"],
            cwd=tmp_path, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stderr is not None
        assert "Ctrl-C ends it" in process.stderr.readline()
        process.send_signal(number)
        process.communicate()
        assert process.returncode == code
        assert server.paths == ["/start_profile", "/stop_profile"]


@contextlib.contextmanager
def raw(answer: Callable[[socket.socket], None]) -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers with any bytes; with its URL, the requests that it got."""
    requests: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    request = b""
                    while not request.endswith(b"}"):
                        request += connection.recv(4096)
                    requests.append(request)
                    with connection, contextlib.suppress(OSError):
                        answer(connection)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", requests
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def drip(connection: socket.socket) -> None:
    connection.sendall(b"HTTP/1.1 200 OK\r\nX-Long: ")
    for _ in range(100):
        connection.sendall(b"a")
        time.sleep(0.05)


def continues(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        pytest.param(continues, "does not end", id="100 Continue without end"),
        pytest.param(lambda connection: connection.recv(1), "no answer in time", id="hangs"),
        pytest.param(drip, "no answer in time", id="byte by byte"),
        pytest.param(lambda connection: None, "closed|reset", id="closes"),
        pytest.param(lambda connection: connection.sendall(b"SSH-2.0\r\n"), "SSH", id="no HTTP"),
        pytest.param(
            lambda connection: connection.sendall(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 9999),
            "headers",
            id="endless headers",
        ),
        pytest.param(
            lambda connection: connection.sendall(b"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"),
            "status is 103",
            id="more is to come",
        ),
    ],
)
def test_a_lost_answer_is_an_error_and_the_capture_is_stopped(
    answer: Callable[[socket.socket], None], why: str
) -> None:
    """The request has arrived: the server may be recording."""
    with raw(answer) as (url, requests), pytest.raises(UsageError, match=why):
        captured(url)
    assert [request.split()[1] for request in requests] == [b"/start_profile", b"/stop_profile"]


def test_what_cannot_be_stopped_behind_a_lost_answer_is_said() -> None:
    said: list[str] = []
    with raw(lambda connection: None) as (url, _), pytest.raises(UsageError):
        captured(url, say=said.append)
    assert "may still be recording" in " ".join(said)


def test_an_endless_body_is_not_read() -> None:
    def answer(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n" + b"\x1b[31m::error::" * 100)
        while True:
            connection.sendall(b"x" * 65536)

    with raw(answer) as (url, requests):
        assert captured(url).engine is None
    assert len(requests) == 2


def test_proxies_of_the_environment_are_not_used(stand_in: Callable[..., StandIn], tmp_path: Path) -> None:
    server, proxy = stand_in("vLLM"), stand_in("vLLM")
    names = {"http_proxy": proxy.url, "HTTP_PROXY": proxy.url, "all_proxy": proxy.url, "no_proxy": ""}
    done = record("--server", server.url, "--max-seconds", "0.05", cwd=tmp_path, **names)
    assert done.returncode == 0
    assert len(server.asked) == 2
    assert not proxy.asked


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8000", "ftp://127.0.0.1", "file:///etc/passwd", "http://", "http://u:p@127.0.0.1", "http://127.0.0.1:x",
        "http://127.0.0.1/?a=b", "http://127.0.0.1/#a", "http://127.0.0.1/a b", "http://127.0.0.1/\r\nX: y", "http://10.0.0.1",
        "http://localhost.example.org", "http://0.0.0.0", "http://127.0.0.1.example.org", "http://[::]", "http://[fe80::1]", "http://127.0.0.1:0",
    ],
)  # fmt: skip
def test_other_addresses_are_refused(url: str) -> None:
    with pytest.raises(UsageError, match="--server"):
        parse_server(url, allow_remote=False)


def test_a_name_that_leads_elsewhere_is_not_told_anything(
    stand_in: Callable[..., StandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an entry of the hosts file can make `localhost` do."""
    server = stand_in("vLLM")
    monkeypatch.setattr(socket.socket, "getpeername", lambda self: ("10.0.0.1", 80))
    with pytest.raises(UsageError, match="is another machine"):
        captured(server.url.replace("127.0.0.1", "localhost"))
    assert not server.asked


@pytest.mark.parametrize(
    "options",
    [["--at", "3"], ["--copy"], ["--max-mb", "5"], ["--max-seconds", "0"], ["--", "ls"], ["--max-seconds", "nan"], ["--max-seconds", "inf"]],
)  # fmt: skip
def test_what_a_server_has_no_use_for_is_refused(
    stand_in: Callable[..., StandIn], options: list[str], tmp_path: Path
) -> None:
    server = stand_in("vLLM")
    done = record("--server", server.url, *options, cwd=tmp_path)
    assert done.returncode == 125
    assert not server.asked
