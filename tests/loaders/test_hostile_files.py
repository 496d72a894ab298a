"""Files and folders made to hang a reader, to fill its memory or to write to a terminal: each is named, the rest is read."""

from __future__ import annotations

import gzip
import json
import os
import socket
import subprocess
from pathlib import Path

import pytest
from warm_commands import warm

import trace_doctor
from trace_doctor.errors import DamagedCapture, NoCaptures, NotACapture, TooLarge, one_line
from trace_doctor.loaders import gunzip
from trace_doctor.loaders.discover import discover
from trace_doctor.loaders.kineto import window as kineto_window
from trace_doctor.loaders.kineto.events import EventList
from trace_doctor.loaders.kineto.trace import load_trace
from trace_doctor.loaders.torch_trace import load_torch_trace
from trace_doctor.memory_limit import available_memory, memory_limit
from trace_doctor.run import Run
from trace_doctor.testing import RunBuilder

HEAD = '{"schemaVersion": 1, "deviceProperties": [], "traceEvents": ['
EVENT = {"ph": "X", "cat": "cpu_op", "name": "op", "pid": 1, "tid": 1, "ts": 1, "dur": 1}
LIMIT = 160 << 20


def put(folder: Path, name: str, content: str | bytes = HEAD + json.dumps(EVENT) + "]}") -> Path:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def load(tmp_path: Path, content: str | bytes) -> Run:
    return load_trace(put(tmp_path, "trace.json", content), "trace.json", max_memory=LIMIT)


# ------------------------------------------------------------------ what lies in a folder


def test_a_folder_of_traps(tmp_path: Path) -> None:
    """Links in circles, to nothing, to devices and to files the kernel makes up; FIFOs, sockets, unreadable bytes."""
    put(tmp_path, "trace.json")
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "self.json").symlink_to("self.json")
    (tmp_path / "gone.json").symlink_to("nowhere")
    for name, target in (
        ("zero", "/dev/zero"),
        ("null", "/dev/null"),
        ("messages", "/proc/kmsg"),
        ("me", "/proc/self/maps"),
    ):
        if Path(target).exists():
            (tmp_path / f"{name}.json").symlink_to(target)
    os.mkfifo(tmp_path / "fifo.json")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(os.path.relpath(tmp_path / "socket.json"))
    put(tmp_path, "empty.pickle", b"")
    put(tmp_path, "binary.json", bytes(range(256)) * 40)
    with (tmp_path / "sparse.json").open("wb") as file:
        file.truncate(4 << 30)
    found = discover([tmp_path])
    assert [f.display for f in found.found] == ["trace.json"]
    assert {"fifo.json", "socket.json", "sparse.json", "empty.pickle", "binary.json"} <= {
        i.display for i in found.ignored
    } | {"fifo.json", "socket.json"}


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/proc/kmsg", "/proc/self/status", "/dev/stdin"])
def test_what_is_no_file_given_by_name(path: str) -> None:
    if not Path(path).exists():
        pytest.skip(f"no {path} here")
    with pytest.raises((NotACapture, DamagedCapture, NoCaptures), match=path):
        discover([path])


def test_a_fifo_that_takes_the_place_of_a_file(tmp_path: Path) -> None:
    """Between the look at a file and its reading; opening a FIFO waits for a writer."""
    os.mkfifo(tmp_path / "trace.json")
    with pytest.raises(OSError, match="not a regular file"):
        load_trace(tmp_path / "trace.json", "trace.json")


def test_names_never_reach_a_terminal_as_they_are(tmp_path: Path) -> None:
    for name in ("a\x1b[31m\nb.json", os.fsdecode(b"c\xff.json"), "<script>.json"):
        put(tmp_path, name, HEAD + json.dumps(EVENT | {"name": "\x1b[2J\x07\u202e<script>"}) + "]}")
    put(tmp_path, "\x1b]0;no\x07.json", "{}")
    run = [*warm(), "analyze"]
    for form in ("text", "json", "html"):
        made = subprocess.run([*run, str(tmp_path), "-o", form], capture_output=True, cwd=tmp_path)
        assert made.returncode == 0, made.stderr
        assert b"\x1b" not in made.stdout + made.stderr
        assert b"\x07" not in made.stdout + made.stderr
        if form == "html":
            assert b"<script>.json" not in made.stdout
        if form == "json":
            json.loads(made.stdout)
    refused = subprocess.run([*run, str(tmp_path / "\x1b]0;no\x07.json")], capture_output=True, cwd=tmp_path)
    assert refused.returncode == 2
    assert b"\x1b" not in refused.stderr
    assert refused.stderr.count(b"\n") == 1


def test_one_line() -> None:
    assert one_line("a\nb\x1b[0m\tc") == "a b\N{REPLACEMENT CHARACTER}[0m c"


# ------------------------------------------------------------------ memory


def test_limits_as_people_write_them() -> None:
    assert memory_limit("4GB") == memory_limit("4 GiB") == memory_limit("4096m") == 4 << 30
    assert memory_limit("2000000") == 2_000_000
    assert 0 < memory_limit("50%") <= available_memory()
    for wrong in ("much", "-1GB", "0", "4 apples", "%"):
        with pytest.raises(trace_doctor.errors.UsageError, match="max-memory"):
            memory_limit(wrong)


@pytest.mark.parametrize(
    "different",
    [
        lambda i: {"name": f"name {i} " + "x" * 400},
        lambda i: {"pid": i, "tid": -i, "name": "x" * 9},
        lambda i: {"cat": f"kind {i} " + "x" * 400},
        lambda i: {"args": {"stream": i, "device": i}, "cat": f"k{i}" + "y" * 300},
        lambda i: {"ph": "M", "name": "thread_name", "tid": i, "args": {"name": "x" * 400}},
    ],
    ids=["names", "tracks", "categories", "streams", "labels"],
)
def test_many_different_things(tmp_path: Path, different: object) -> None:
    """They fit into some hundred megabytes; into a limit below that they do not, and it is said while reading."""
    events = ",\n".join(json.dumps(EVENT | different(i)) for i in range(40_000))  # type: ignore[operator]
    with pytest.raises(TooLarge, match=r"^trace\.json: .* more than 133 MB of memory \(--max-memory\)$"):
        load_trace(put(tmp_path, "trace.json", HEAD + events + "]}"), "trace.json", max_memory=133 << 20)


def test_a_library_call_with_a_limit(tmp_path: Path) -> None:
    b = RunBuilder()
    with b.step(), b.op("aten::mm"):
        b.launch(10)
    path = b.write(tmp_path / "trace.json")
    with pytest.raises(TooLarge, match=rf"^{path}: .*--max-memory"):
        trace_doctor.analyze(path, max_memory="1MB")
    assert trace_doctor.analyze(path, max_memory="1GB").inputs


# ------------------------------------------------------------------ bytes that are searched again and again


@pytest.mark.parametrize(
    "text",
    [
        "[" * 300_000,
        HEAD + "[" * 300_000,
        HEAD + '{"ph":"X","args":' + '{"a":' * 100_000,
        '{"schemaVersion": ' + "[" * 300_000,
        '{"schemaVersion": 1, "x": "' + '\\"' * 300_000,
        "{" + '"schemaVersion":1,' * 20_000,
        HEAD + "]}" + '{"ph":1}]}' * 20_000,
        HEAD + '{"ph":[},' * 20_000,
        HEAD + '{"ph":"X","name":"' + '"a":"' * 20_000,
        HEAD + '{"ph":"X","name":"' + '}]}' * 100_000,
        HEAD + '{"ph":"X","name":"' + "\\" * 600_001,
        HEAD + '{"ph":"X","cat":"kernel","name":"' + "\0" * 600_000 + '"}]}',
        HEAD + '{"ph":"X","ts":' + "9" * 600_000 + "}]}",
        HEAD + "{}," * 200_000 + "]}",
        HEAD + " " * 2_000_000,
        HEAD + json.dumps(EVENT) + "]" + " " * 2_000_000 + "x",
        HEAD + (json.dumps(EVENT) + "\n") * 20_000 + " " * (2 << 20) + "]}",
        HEAD + json.dumps(EVENT) + ('], "k": "v" "v", "traceEvents": [' + json.dumps(EVENT)) * 200 + "]" + "x" * (2 << 20),
        HEAD + json.dumps(EVENT) + ('], "k": {"a": [}, "traceEvents": [' + json.dumps(EVENT)) * 60 + "]" + "x" * (2 << 20),
    ],
    ids=["lists", "events", "args", "field", "quotes", "fields", "ends", "broken", "keys", "closings", "backslashes", "nul",
         "digits", "empty", "space", "space behind the end", "no commas", "broken fields", "fields without an end"],
)  # fmt: skip
def test_texts_that_a_careless_reader_searches_for_ever(
    tmp_path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Quadratic work on these would take hours; the suite's own time limit is what fails."""
    # So far ends are sought: the last three are longer.
    monkeypatch.setattr(kineto_window.Window, "LONGEST", 1 << 20)
    try:
        run = load(tmp_path, text)
    except (NotACapture, DamagedCapture) as refused:
        assert str(refused).isprintable()
    else:
        assert len(run) <= 20_001


@pytest.mark.parametrize("unit", ['{"ph":[},', "],", '{"a":NaN},'])
def test_what_cannot_be_read_is_not_tried_for_ever(
    tmp_path: Path, unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EventList, "MOST_UNREAD", 1000)
    run = load(tmp_path, HEAD + json.dumps(EVENT) + "," + unit * 2000 + json.dumps(EVENT) + "]}")
    assert len(run) == 1
    assert run.damage.truncated
    said = f"reading was given up at {run.damage.given_up:,} unreadable places; all complete events before were read"
    assert run.warnings[0] == said
    assert 1000 < run.damage.given_up < 1010


def test_a_file_that_is_mostly_sound_is_read_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EventList, "MOST_UNREAD", 10)
    sound, broken = json.dumps(EVENT) + ",", '{"ph":[},'
    run = load(tmp_path, HEAD + (sound + broken) * 2000 + sound + "]}")
    assert len(run) == 2001
    assert (run.damage.lost, run.damage.given_up) == (2000, 0)


def test_a_single_line_without_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kineto_window.Window, "LONGEST", 1 << 20)
    path = put(tmp_path, "trace.json", HEAD + '{"ph":"X","cat":"kernel","name":"')
    with path.open("r+b") as file:
        file.truncate(64 << 20)
    run = load_trace(path, "trace.json")
    assert len(run) == 0
    assert run.damage.lost == 1


@pytest.mark.parametrize(
    ("before", "behind"),
    [('{"schemaVersion": 1,', '"traceEvents": [' + json.dumps(EVENT) + "]}"),
     ('{"schemaVersion":', '1, "traceEvents": [' + json.dumps(EVENT) + "]}"), (HEAD + json.dumps(EVENT) + ",", "]}"),
     (HEAD + json.dumps(EVENT), "]}"), (HEAD, json.dumps(EVENT) + "]}")],
    ids=["before a field", "before a value", "behind an event", "before a comma", "before an event"],
)  # fmt: skip
def test_white_space_without_end(
    tmp_path: Path, before: str, behind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is passed in steps: the window stays within its limit, and whatever stands around it is read."""
    monkeypatch.setattr(kineto_window.Window, "LONGEST", 1 << 21)
    largest = 0
    drop = kineto_window.Window._drop

    def watched(window: kineto_window.Window, count: int) -> None:
        nonlocal largest
        largest = max(largest, len(window._text))
        drop(window, count)

    monkeypatch.setattr(kineto_window.Window, "_drop", watched)
    run = load(tmp_path, before + " " * (12 << 20) + behind)
    assert len(run) == 1
    assert largest <= 4 << 20


def test_a_gzip_bomb(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gunzip, "BOMB", 1 << 22)
    spaces = gzip.compress((HEAD + json.dumps(EVENT) + "," + " " * (64 << 20)).encode(), 9)
    run = load(tmp_path, spaces)
    assert len(run) == 1
    assert run.damage.notes == ["the gzip data unpacks to more than 200 times its size"]


def test_members_without_anything_in_them(tmp_path: Path) -> None:
    run = load(
        tmp_path, gzip.compress((HEAD + json.dumps(EVENT) + ",").encode()) + gzip.compress(b"") * 50_000
    )
    assert len(run) == 1
    assert run.damage.notes == ["the gzip data has thousands of empty members"]


def test_bytes_behind_the_gzip_data(tmp_path: Path) -> None:
    whole = gzip.compress((HEAD + json.dumps(EVENT) + "]}").encode())
    run = load(tmp_path, whole + b"garbage" * 1000)
    assert (len(run), run.damage.trailing) == (1, 7000)
    for padding in (bytes(1000), b"\n", b"\0\r\n " * 200_000):
        run = load(tmp_path, whole + padding)
        assert (len(run), run.damage.trailing, run.warnings) == (1, 0, [])


def test_a_torch_trace_log_of_one_line(tmp_path: Path) -> None:
    line = b'V1121 12:56:07.760000 7976 torch/_dynamo/x.py:5098] {"str": ["a", 1], "rank": 2}\n'
    log = load_torch_trace(put(tmp_path, "a.log", gzip.compress(line + b"\tx" + bytes(64 << 20))), "a.log")
    assert (log.records, log.rank) == (1, 2)
    with pytest.raises(NotACapture):
        load_torch_trace(put(tmp_path, "b.log", gzip.compress(bytes(16 << 20))), "b.log")


@pytest.mark.parametrize("content", ['{"k:1": 7, "j": {"stack_traces": 7}}', "[1]", "[" * 100_000])
def test_lines_of_kernels_that_are_none(tmp_path: Path, content: str) -> None:
    path = tmp_path / "kernel_information.json"
    path.write_text(content)
    with pytest.raises(NotACapture, match="not the sources of compiled kernels"):
        load_torch_trace(path, path.name)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, '{"torch": "' + "9" * 60_000 + '"}', '{"cpu_count": 1e999}', "\xff", "null"]
)
def test_an_environment_beside_a_trace(tmp_path: Path, text: str) -> None:
    put(tmp_path, "trace.json")
    put(tmp_path, "environment.json", text.encode("latin1"))
    assert trace_doctor.analyze(tmp_path).inputs


def test_numbers_of_thousands_of_digits_in_names(tmp_path: Path) -> None:
    """Python refuses to read them. Steps, lines, compiled regions and streams are those with numbers."""
    n = "7" * 5000
    names = [
        ("user_annotation", f"ProfilerStep#{n}"), ("user_annotation", "ProfilerStep#3"),
        ("user_annotation", f"Torch-Compiled Region: {n}/{n}"), ("python_function", f"train.py({n}): f"),
        ("python_function", f"train.py(3): torch_dynamo_resume_in_f_at_{n}"), ("python_function", f"nn.Module: A_{n}"),
        *[("cpu_op", "aten::mm")] * 90,
    ]  # fmt: skip
    events = [
        EVENT | {"cat": cat, "name": name, "ts": i, "args": {"Call stack": f"train.py({n}): f;"}}
        for i, (cat, name) in enumerate(names)
    ]
    events.append(EVENT | {"cat": "kernel", "args": {"stream": f"stream {n}"}, "tid": f"stream {n}"})
    (tmp_path / "a").mkdir()
    put(tmp_path / "a", "trace.json", json.dumps({"traceEvents": events}))
    put(tmp_path / "a", "dedicated_log_torch_trace_x.log", "\n".join(
        f'V0401 12:00:00.123456 77 torch/_logging/structured.py:22] {{"artifact": {{"name": "dynamo_graph_break_reason"}}, '
        f'"has_payload": "x"}}\n\t{text}'
        for text in (f"Graph break in user code at a.py:{n}", f'User code traceback:\n\t  File "a.py", line {n}, in f')
    ))  # fmt: skip
    result = trace_doctor.analyze(tmp_path / "a")
    assert not result.ignored
    assert [o.reason for o in result.outcomes if o.outcome == "error"] == []


@pytest.mark.parametrize("name", ["K" * 300 + ".py", "a/" * 3000 + "b.py", "nul\0.py"])
def test_a_script_whose_name_no_file_can_have(tmp_path: Path, name: str) -> None:
    b = RunBuilder(stacks=True)
    for _ in range(8):
        with b.step(), b.python(name, 10, "train"):
            with b.op("aten::mm"):
                b.launch(1000)
            with b.op("aten::item"):
                b.sync()
            b.wait(3000)
    result = trace_doctor.analyze(b.write(tmp_path / "trace.json"))
    assert result.findings
    for command in (["check", "trace.json"], ["analyze", "trace.json", "-o", "agent"]):
        done = subprocess.run([*warm(), *command], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode in (0, 1), done.stderr
