"""The decoder in C against the one in Python: the same run to the bit, or it does not take the text."""

from __future__ import annotations

import dataclasses
import gc
import gzip
import json
import os
import random
import shutil
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trace_doctor.errors import TraceDoctorError, UsageError
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.trace.nesting import inside, nest
from trace_doctor.loaders import _accelerator, gunzip, stream
from trace_doctor.loaders._accelerator import build
from trace_doctor.loaders.kineto import window as kineto_window
from trace_doctor.loaders.kineto.decode import Columns
from trace_doctor.loaders.kineto.trace import load_trace
from trace_doctor.run import Run

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = sorted((ROOT / "sample_traces").rglob("trace*.json.gz"))
FUZZ = ROOT / "tests" / "fuzz" / "accelerator"
CASES = sorted((FUZZ / "cases").iterdir())

LIBRARY, ABSENT = _accelerator._load()
in_c = pytest.mark.skipif(LIBRARY is None, reason=f"no decoder in C: {ABSENT}")


# -- whole runs ----------------------------------------------------------------------------------------------------


def content(value: Any) -> Any:
    """All that a loader gives, comparable with ==; arrays by their bytes. What others kept with it is not the loader's."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.tobytes()
    if dataclasses.is_dataclass(value):
        fields = [
            f.name for f in dataclasses.fields(value) if f.name not in ("read_args", "derived", "_masks")
        ]
        return [(name, content(getattr(value, name))) for name in fields]
    return value


def loaded(path: Path, decoder: str) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(_accelerator.VARIABLE, decoder)
        try:
            return content(load_trace(path, path.name))
        except TraceDoctorError as error:
            return repr(error)


def assert_alike(path: Path) -> None:
    python, c = loaded(path, "python"), loaded(path, "c")
    if isinstance(python, str) or isinstance(c, str):
        assert c == python
        return
    for (field, expected), (_, found) in zip(python, c, strict=True):
        assert found == expected, field


class Taken:
    """How many windows the decoder in C was shown, and how many of them it took."""

    def __init__(self) -> None:
        self.shown = self.took = 0


@pytest.fixture
def small_windows() -> Iterator[Taken]:
    """Windows of a few events, so that small files have many."""
    taken, scan = Taken(), _accelerator.Scanner.scan

    def counted(*arguments: Any) -> Any:
        window = scan(*arguments)
        taken.shown += 1
        taken.took += window is not None
        return window

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kineto_window.Window, "LOOK_AHEAD", 1 << 12)
        for module in (stream, gunzip):
            patch.setattr(module, "PIECE", 1 << 13)
        patch.setattr(_accelerator.Scanner, "scan", counted)
        yield taken


@in_c
@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_both_give_the_same_run_of_a_sample(path: Path, small_windows: Taken) -> None:
    assert_alike(path)
    assert small_windows.took >= small_windows.shown - 4 > 0


@in_c
@pytest.mark.captures
def test_both_give_the_same_run_of_a_real_capture(trace_file: Path, trace_facts: Facts) -> None:
    """`trace_facts` is what the decoder in C gives, where it is there."""
    python = loaded(trace_file, "python")
    for (field, expected), (_, found) in zip(python, content(trace_facts.run), strict=True):
        assert found == expected, field


def damaged(text: bytes, rng: random.Random) -> bytes:
    found = bytearray(text)
    for _ in range(rng.choice([1, 1, 4, 30])):
        at = rng.randrange(len(found) + 1)
        match rng.randrange(6):
            case 0:
                del found[max(at, 200) :]
            case 1:
                found[at : at + 1] = rng.choice(
                    [b'"', b"{", b"}", b"[", b"]", b",", b"\\", b"\0", b"\xff", b"-"]
                )
            case 2:
                del found[at : at + rng.randrange(200)]
            case 3:
                found[at:at] = found[at : at + rng.randrange(2000)]
            case 4:
                found[at:at] = bytes([rng.randrange(256)])
            case 5:
                found[at:at] = rng.choice(
                    [
                        b'"},{"ph":"X"}',
                        b"\\u12",
                        b"\\ud800",
                        b"\xc3\xa9",
                        b"NaN",
                        b"1e5",
                        b"0",
                        b'},{"name":"x"',
                    ]
                )
    return bytes(found)


@in_c
@pytest.mark.parametrize("seed", range(40))
def test_both_give_the_same_run_of_a_damaged_file(seed: int, tmp_path: Path, small_windows: Taken) -> None:
    rng = random.Random(seed)
    text = gzip.decompress(SAMPLES[seed % len(SAMPLES)].read_bytes())
    middle = text.index(b'"ph": "X"')
    text = text[: middle + 60_000] + text[-20_000:]
    path = tmp_path / "trace.json"
    path.write_bytes(damaged(text, rng))
    assert_alike(path)
    assert small_windows.shown


def test_rejected_windows_leave_no_names_behind(tmp_path: Path, small_windows: Taken) -> None:
    """The decoder in C has seen the names of a window before it gives the window up."""
    events = [
        {"ph": "X", "cat": "cpu_op", "name": f"op{i}", "pid": 1, "tid": 1, "ts": i, "dur": 1}
        for i in range(2000)
    ]
    texts = [json.dumps(e) for e in events]
    for bad in range(
        50, 2000, 100
    ):  # a number as text, which Python's decoder takes; names in another order behind
        texts[bad : bad + 3] = [
            texts[bad + 2],
            texts[bad].replace(f'"ts": {bad}', f'"ts": "{bad}"'),
            texts[bad + 1],
        ]
    path = tmp_path / "trace.json"
    path.write_text('{"schemaVersion": 1, "traceEvents": [' + ",".join(texts) + "]}")
    runs = [load_trace(path, "trace.json") for _ in range(2)]
    assert content(runs[0]) == loaded(path, "python") == content(runs[1])
    assert len(runs[0].names) == 2000


# -- the call tree ---------------------------------------------------------------------------------------------------


@in_c
@given(
    st.lists(
        st.tuples(st.integers(-20, 60), st.sampled_from([0, 1, 2, 3, 5, 8, 13, 21, 55, 2**62])), max_size=60
    )
)
def test_both_nest_alike(spans: list[tuple[int, int]]) -> None:
    spans.sort(key=lambda s: (s[0], -s[1]))
    ts = np.array([start for start, _ in spans], dtype=np.int64)
    dur = np.array([dur for _, dur in spans], dtype=np.int64)
    both = np.repeat(ts, 2), np.repeat(dur, 2)  # those of another thread between them
    rows = np.arange(len(ts), dtype=np.int64) * 2
    parent, depth = np.full(2 * len(ts), -7, np.int32), np.full(2 * len(ts), -7, np.int32)
    assert _accelerator.nest(*both, rows, parent, depth)
    above, level = nest(ts, ts + dur)
    assert parent[rows].tolist() == np.where(above >= 0, 2 * above, -1).tolist()
    assert depth[rows].tolist() == level.tolist()
    assert (parent[rows + 1] == -7).all() and (depth[rows + 1] == -7).all()


@in_c
@given(st.lists(st.tuples(st.integers(0, 8), st.booleans(), st.booleans()), max_size=40))
def test_both_tell_alike_what_lies_in_an_event(events: list[tuple[int, bool, bool]]) -> None:
    up = np.array([max(i - back, 0) - 1 for i, (back, _, _) in enumerate(events)], dtype=np.int32)
    chosen = np.array([mark for _, mark, _ in events], dtype=bool)
    rows = np.flatnonzero(np.array([asked for _, _, asked in events], dtype=bool))
    found = _accelerator.inside(up, chosen, rows)
    assert found is not None
    assert found.tolist() == inside(up, chosen, rows).tolist()


# -- which of the two ------------------------------------------------------------------------------------------------


def test_it_is_there_where_a_compiler_is() -> None:
    if build.compiler() is None:
        pytest.skip("no C compiler")
    assert LIBRARY is not None, ABSENT


def test_python_can_be_forced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_accelerator.VARIABLE, "python")
    assert Columns().scanner() is None
    one, place = np.zeros(1, np.int64), np.zeros(1, np.int32)
    assert not _accelerator.nest(one, one, one, place, place)
    assert _accelerator.inside(place, one > 0, one) is None
    assert _accelerator.description() == "Python (the one in C: TRACE_DOCTOR_DECODER=python)"


def test_another_word_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(_accelerator.VARIABLE, "rust")
    with pytest.raises(UsageError, match="TRACE_DOCTOR_DECODER=rust: not a decoder"):
        Columns().scanner()


def folder_without(tmp_path: Path, change: Callable[[Path], object]) -> Path:
    folder = tmp_path / "accelerator"
    shutil.copytree(_accelerator.FOLDER, folder)
    change(folder)
    return folder


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda f: (f / build.LIBRARY).unlink(missing_ok=True), "not built at install"),
        (lambda f: (f / build.LIBRARY).write_bytes(b"no library"), "cannot be loaded"),
    ],
)
def test_without_a_library_python_reads_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], object], why: str
) -> None:
    monkeypatch.setattr(_accelerator, "FOLDER", folder_without(tmp_path, change))
    monkeypatch.setattr(_accelerator, "_load", _accelerator._load.__wrapped__)
    monkeypatch.delenv(_accelerator.VARIABLE, raising=False)
    assert Columns().scanner() is None
    assert why in _accelerator.description()
    monkeypatch.setenv(_accelerator.VARIABLE, "c")
    with pytest.raises(UsageError, match=why):
        Columns().scanner()


@in_c
@pytest.mark.parametrize("left", [0, 1_000, 5_000, -1])
def test_a_library_that_was_cut_is_not_loaded(tmp_path: Path, left: int) -> None:
    """The system maps what a file says of itself: what is cut off ends the process by a signal, so it is tried in another."""
    library = folder_without(tmp_path, lambda _: None) / build.LIBRARY
    os.truncate(library, left % library.stat().st_size)
    code = (
        "import pathlib, sys; from trace_doctor.loaders import _accelerator as a;"
        "a.FOLDER = pathlib.Path(sys.argv[1]); print(a.description())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(library.parent)],
        capture_output=True,
        text=True,
        env={k: v for k, v in os.environ.items() if k != _accelerator.VARIABLE},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("Python (the one in C: cannot be loaded")


@in_c
def test_a_library_of_other_sources_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_without(tmp_path, lambda f: (f / "scan.c").open("a").write("\n"))
    monkeypatch.setattr(_accelerator, "FOLDER", folder)
    library, why = _accelerator._load.__wrapped__()
    assert library is None
    assert "another version of its source" in why


@pytest.mark.parametrize(
    ("compiler", "why"), [("no-such-compiler", "no C compiler was found"), ("false", "false failed")]
)
def test_a_failed_build_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compiler: str, why: str
) -> None:
    monkeypatch.setenv("CC", compiler)
    assert build.build(tmp_path / "made") == why
    assert not (tmp_path / "made").exists()


# -- memory ----------------------------------------------------------------------------------------------------------


def test_no_byte_beyond_the_text_is_touched(tmp_path: Path) -> None:
    """The fuzzer's harness under AddressSanitizer, over the cases and all their beginnings."""
    compiler, program = build.compiler(), tmp_path / "replay"
    if compiler is None:
        pytest.skip("no C compiler")
    flags = ["-std=c11", "-g", "-O1", "-fwrapv", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    made = subprocess.run(
        [
            *compiler,
            *flags,
            '-DTRACE_DOCTOR_SOURCES=""',
            f"-I{_accelerator.FOLDER}",
            str(FUZZ / "replay.c"),
            "-o",
            str(program),
        ],
        capture_output=True,
        text=True,
    )
    if made.returncode and "asan" in made.stderr:
        pytest.skip("the compiler has no AddressSanitizer")
    assert made.returncode == 0, made.stderr
    environment = os.environ | {
        "ASAN_OPTIONS": "detect_leaks=0"
    }  # that needs ptrace, which containers forbid
    done = subprocess.run([program, *CASES], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"{len(CASES)} texts" in done.stdout


def test_a_column_never_moves_while_it_is_written(tmp_path: Path, small_windows: Taken) -> None:
    """Rows of both decoders in turn, more than were reserved: the one in C is lent the columns anew."""
    count = 70_000
    usual = '{"ph":"X","name":"a","ts":%d,"dur":1,"cat":"cpu_op"}'
    odd = '{"ph":"X","name":"b","ts":"%d","dur":1,"cat":"cpu_op"}'
    events = ",".join((odd if i % 500 == 250 else usual) % i for i in range(count))
    path = tmp_path / "trace.json"
    path.write_text(f'{{"schemaVersion":1,"traceEvents":[{events}]}}')
    run: Run = load_trace(path, "trace.json")
    assert run.ts.tolist() == [1000 * i for i in range(count)]


@in_c
def test_what_a_scanner_holds_goes_with_it() -> None:
    """At once, not when the garbage collector comes by: the texts of a trace may be many."""
    scanner = Columns().scanner()
    assert scanner is not None
    gone = weakref.ref(scanner)
    gc.disable()
    try:
        del scanner
        assert gone() is None
    finally:
        gc.enable()
