"""`trace-doctor view`: one page and one trace, for this machine and whoever knows the address."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from warm_commands import FRESH

import trace_doctor
from trace_doctor.reporters import render
from trace_doctor.testing import RunBuilder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("view")
    made = RunBuilder()
    for _ in range(8):
        with made.step(), made.op("aten::mm"):
            made.launch(100)
    result = trace_doctor.analyze(made.write(folder / "trace.json"), detail=True)
    (folder / "report.html").write_text(render(result, "html") + "<p>not ours</p>", encoding="utf-8")
    return folder


class Served:
    def __init__(self, folder: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [*FRESH, "view", "report.html", *arguments],
            cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stdout is not None
        self.url = urlsplit(self.process.stdout.readline().strip())

    def ask(
        self, path: str, host: str | None = None, method: str = "GET"
    ) -> tuple[int, bytes, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.url.port or 0, timeout=30)
        connection.request(method, path, headers={"Host": host or self.url.netloc})
        answer = connection.getresponse()
        got = answer.status, answer.read(), dict(answer.headers)
        connection.close()
        return got


@pytest.fixture
def served(folder: Path) -> Iterator[Served]:
    served = Served(folder, "--trace", "trace.json")
    yield served
    served.process.kill()
    served.process.communicate()


def test_it_serves_the_page_and_the_trace_and_nothing_else(served: Served, folder: Path) -> None:
    root = served.url.path
    assert served.url.hostname == "127.0.0.1"
    assert len(root) > 30
    status, page, headers = served.ask(root)
    assert status == 200
    assert b"connect-src 'self'" in page
    assert b"not ours" not in page, "the page is made anew: foreign markup is not served"
    assert headers["Cache-Control"] == "no-store"
    assert served.ask(f"{root}trace")[:2] == (200, (folder / "trace.json").read_bytes())
    for path in (
        "/",
        "/trace",
        f"{root}..",
        f"{root}report.html",
        f"{root}trace/",
        f"{root}?x",
        f"/x{root}",
        root[:-1],
    ):
        assert served.ask(path)[0] == 404, path
    assert served.ask(root, method="POST")[0] == 501
    assert served.ask(root, method="PUT")[0] == 501
    for host in (
        "example.org",
        f"example.org:{served.url.port}",
        "127.0.0.1",
        f"localhost:{served.url.port}",
    ):
        assert served.ask(root, host=host)[0] == 403, host
        assert served.ask(f"{root}trace", host=host)[0] == 403, host


def test_ctrl_c_ends_it_with_0(served: Served) -> None:
    served.process.send_signal(signal.SIGINT)
    served.process.communicate(timeout=60)
    assert served.process.returncode == 0


def test_without_a_trace_there_is_none(folder: Path) -> None:
    served = Served(folder)
    try:
        assert served.ask(served.url.path)[0] == 200
        assert b"connect-src" not in served.ask(served.url.path)[1]
        assert served.ask(f"{served.url.path}trace")[0] == 404
    finally:
        served.process.kill()
        served.process.communicate()


def test_the_trace_is_the_file_that_was_named(folder: Path, tmp_path: Path) -> None:
    place, whole = tmp_path / "trace.json", (folder / "trace.json").read_bytes()
    place.write_bytes(whole)
    (tmp_path / "secret.txt").write_text("secret")
    served = Served(folder, "--trace", str(place))
    try:
        for take_its_place in (
            lambda: place.symlink_to("secret.txt"),
            lambda: os.mkfifo(place),
            place.mkdir,
            lambda: None,
        ):
            place.rmdir() if place.is_dir() else place.unlink(missing_ok=True)
            take_its_place()
            assert served.ask(f"{served.url.path}trace")[:2] == (200, whole)
    finally:
        served.process.kill()
        served.process.communicate()


@pytest.mark.parametrize("held", [b"", b"API_KEY=secret\n", b'{"a": 1}', b"\x80\x04N."])
def test_what_is_no_trace_is_not_served(held: bytes, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_bytes(held)
    served = Served(folder, "--trace", str(tmp_path / "trace.json"))
    _, said = served.process.communicate(timeout=60)
    assert served.process.returncode == 2
    assert said.count("\n") == 1 and "--trace" in said


def test_ctrl_c_before_the_address_ends_it_with_0(folder: Path) -> None:
    """As it comes while the page is made."""
    code = (
        "import sys, trace_doctor.reporters.saved as saved\n"
        "def read(path): raise KeyboardInterrupt\n"
        "saved.read_saved = read\n"
        "sys.argv[1:] = ['view', 'report.html']\n"
        "from trace_doctor.cli import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_a_connection_that_a_browser_breaks_off_is_no_error(served: Served) -> None:
    for _ in range(5):
        broken = socket.create_connection(("127.0.0.1", served.url.port or 0))
        broken.sendall(b"GET / HT")
        broken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset, not closed
        broken.close()
    assert served.ask(served.url.path)[0] == 200
    served.process.send_signal(signal.SIGINT)
    assert "Traceback" not in served.process.communicate(timeout=60)[1]
