"""`trace-doctor attach`, against a stand-in for dynolog and for the process that it has record."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from warm_commands import warm

from trace_doctor.errors import UsageError
from trace_doctor.recording.live.dynolog import collect, trigger
from trace_doctor.testing import RunBuilder

MATCHED = {"processesMatched": [41, 42], "activityProfilersTriggered": [41, 42], "activityProfilersBusy": 0}


def packed(answer: object) -> bytes:
    text = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    return struct.pack("=i", len(text)) + text


@contextlib.contextmanager
def daemon(
    answer: Callable[[socket.socket, dict[str, Any]], None],
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Its port, and the requests that it got."""
    requests: list[dict[str, Any]] = []

    def serve() -> None:
        with contextlib.suppress(OSError):
            connection, _ = listening.accept()
            with connection:
                (size,) = struct.unpack("=i", connection.recv(4))
                requests.append(json.loads(connection.recv(size)))
                answer(connection, requests[-1])

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield listening.getsockname()[1], requests
        thread.join(5)


def settings(request: dict[str, Any]) -> dict[str, str]:
    return dict(line.split("=", 1) for line in request["config"].split("\n"))


def records(connection: socket.socket, request: dict[str, Any]) -> None:
    """As processes do: each writes aside, and the file gets its name when it is whole."""
    connection.sendall(packed(MATCHED))
    made = RunBuilder()
    for _ in range(4):
        with made.step(), made.op("aten::mm"):
            made.launch(100)
    place = Path(settings(request)["ACTIVITIES_LOG_FILE"])
    for pid in MATCHED["processesMatched"]:  # type: ignore[attr-defined]
        aside = made.write(place.with_name(f"trace_{pid}.json.tmp"))
        aside.rename(place.with_name(f"trace_{pid}.json"))


def attach(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*warm(), "attach", *arguments], cwd=cwd, capture_output=True, text=True)


def test_processes_record_and_the_next_command_works(tmp_path: Path) -> None:
    with daemon(records) as (port, requests):
        done = attach(f"localhost:{port}", "--max-seconds", "0.2", "--no-stacks", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (folder,) = (tmp_path / "logs").iterdir()
    assert {p.name for p in folder.iterdir()} == {"trace_41.json", "trace_42.json"}
    asked = settings(requests[0])
    assert (asked["ACTIVITIES_DURATION_MSECS"], asked["PROFILE_WITH_STACK"]) == ("200", "false")
    assert requests[0]["pids"] == [0]
    place = Path(asked["ACTIVITIES_LOG_FILE"]).parent
    assert str(place).startswith("/tmp/"), "Kineto takes no other from dynolog"
    assert not place.exists()
    following = re.search(r"^next: trace-doctor (.+)$", done.stderr, re.M)
    assert following
    assert subprocess.run([*warm(), *shlex.split(following[1]), "-o", "json=-"], cwd=tmp_path).returncode == 0


def test_one_process_and_steps_are_asked_for() -> None:
    with daemon(lambda connection, _: connection.sendall(packed(MATCHED))) as (port, requests):
        said = trigger("127.0.0.1", port, [41], "/tmp/t.json", seconds=1, steps=3)
    assert said.pids == (41, 42)
    assert requests[0]["pids"] == [41]
    assert settings(requests[0])["ACTIVITIES_ITERATIONS"] == "3"


def drip(connection: socket.socket, _: object) -> None:
    for byte in packed(MATCHED):
        connection.sendall(bytes([byte]))
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        pytest.param(lambda c, _: c.recv(1), "no answer in time", id="hangs"),
        pytest.param(drip, "no answer in time", id="byte by byte"),
        pytest.param(lambda c, _: None, "closed", id="closes"),
        pytest.param(lambda c, _: c.sendall(struct.pack("=i", 2**31 - 1) + b"{"), "2147483647 bytes", id="endless"),
        pytest.param(lambda c, _: c.sendall(struct.pack("=i", -5)), "-5 bytes", id="negative"),
        pytest.param(lambda c, _: c.sendall(packed(b"\xff{")), "no dynolog answers", id="no JSON"),
        pytest.param(lambda c, _: c.sendall(packed(b"[" * 60_000)), "no dynolog answers", id="deep"),
        pytest.param(lambda c, _: c.sendall(packed([1])), "knows no such process", id="another type"),
        pytest.param(lambda c, _: c.sendall(packed({"processesMatched": [True, "x", -1]})), "knows no", id="no numbers"),
        pytest.param(
            lambda c, _: c.sendall(packed(MATCHED | {"activityProfilersTriggered": []})), "in progress", id="busy"
        ),
    ],
)  # fmt: skip
def test_another_answer_is_an_error(answer: Callable[[socket.socket, Any], None], why: str) -> None:
    with daemon(answer) as (port, _), pytest.raises(UsageError, match=why):
        trigger("127.0.0.1", port, [41], "/tmp/t.json", seconds=1, patience=0.4)


def test_without_a_daemon_the_way_that_needs_none_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(UsageError, match=r"KINETO_USE_DAEMON=1.*trace-doctor record"):
        trigger("127.0.0.1", port, [41], "/tmp/t.json", seconds=1)


def test_what_is_no_file_is_neither_moved_nor_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, to = tmp_path / "place", tmp_path / "to"
    place.mkdir()
    to.mkdir()
    os.mkfifo(place / "trace_1.json")
    (place / "trace_2.json").mkdir()
    (place / "trace_3.json").symlink_to(tmp_path / "nothing")
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("all that there will be is there"))
    assert collect(place, [1, 2, 3], 60, to) == []
    assert not list(to.iterdir())


def test_a_path_cannot_hold_another_setting() -> None:
    with pytest.raises(UsageError, match="do not print"):
        trigger("127.0.0.1", 1, [], "/tmp/a\nACTIVITIES_LOG_FILE=/b", seconds=1)


@pytest.mark.parametrize(
    ("target", "why"),
    [("10.0.0.1", "--allow-remote"), ("0", "no process"), ("a b", "neither"), (":5", "neither"), ("h:99999", "neither"), ("u:S3CR3T@127.0.0.1", "neither")],
)  # fmt: skip
def test_other_targets_are_refused(target: str, why: str, tmp_path: Path) -> None:
    done = attach(target, cwd=tmp_path)
    assert done.returncode == 2
    assert why in done.stderr and "S3CR3T" not in done.stderr
    assert not list(tmp_path.iterdir())


def test_where_nothing_was_recorded_no_folder_is_left(tmp_path: Path) -> None:
    with daemon(lambda connection, _: None) as (port, _):
        done = attach(f"127.0.0.1:{port}", cwd=tmp_path)
    assert done.returncode == 2 and "closed" in done.stderr
    assert not list(tmp_path.iterdir())


def test_no_name_is_no_folder_for_captures(tmp_path: Path) -> None:
    done = attach("1", "--out", "", cwd=tmp_path)
    assert done.returncode == 2 and "--out is empty" in done.stderr
    assert not list(tmp_path.iterdir())
