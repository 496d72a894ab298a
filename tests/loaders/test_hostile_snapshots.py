"""Pickles made to take all memory, to run for ever or to crash Python: one clear line, and this process goes on.

Every case is a few kilobytes. The memory they may take is small here, so that what would take gigabytes is refused early.
"""

from __future__ import annotations

import gzip
import pickle
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from trace_doctor.errors import DamagedCapture, NotACapture
from trace_doctor.isolation import OutOfMemory
from trace_doctor.loaders import plain_pickle
from trace_doctor.loaders.snapshot import unpickle as loader
from trace_doctor.snapshot import Snapshot

MEMORY = 192 << 20
WORD, LONG = struct.Struct("<I"), struct.Struct("<Q")


def load(tmp_path: Path, program: bytes) -> Snapshot:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(program)
    return loader.load_snapshot(path, "snapshot.pickle", max_memory=MEMORY)


def refusal(tmp_path: Path, program: bytes) -> str:
    with pytest.raises((NotACapture, DamagedCapture)) as refused:
        load(tmp_path, program)
    said = str(refused.value)
    assert said.startswith("snapshot.pickle: ")
    assert said.isprintable()
    assert len(said) < 300
    return said


def snapshot(**fields: Any) -> bytes:
    return pickle.dumps({"segments": [], "device_traces": [], **fields})


PROGRAMS = {
    "global": b"cos\nsystem\n(S'true'\ntR.",
    "inst": b"(S'true'\nios\nsystem\n.",
    "obj": b"(cos\nsystem\nS'true'\no.",
    "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
    "newobj": b"\x80\x02cbuiltins\nobject\n)\x81.",
    "newobj_ex": b"\x80\x04\x8c\x08builtins\x8c\x06object\x93)}\x92.",
    "reduce without a callable": b"\x80\x02K\x01)R.",
    "build": b"\x80\x02]}b.",
    "ext1": b"\x80\x02\x82\x01.",
    "ext2": b"\x80\x02\x83\x01\x00.",
    "ext4": b"\x80\x02\x84\x01\x00\x00\x00.",
    "persid": b"Pid\n.",
    "binpersid": b"\x80\x02K\x01Q.",
    "next buffer": b"\x80\x05\x97.",
    "readonly buffer": b"\x80\x05]\x98.",
    "long4": b"\x80\x02\x8b" + WORD.pack(0x7FFFFFFF) + b".",
    "negative long4": b"\x80\x02\x8b" + WORD.pack(0xFFFFFFFF) + b".",
    "binunicode8": b"\x80\x04\x8d" + LONG.pack(1 << 40) + b".",
    "binbytes8": b"\x80\x04\x8e" + LONG.pack(1 << 62) + b".",
    "bytearray8": b"\x80\x05\x96" + LONG.pack(1 << 40) + b".",
    "frame": b"\x80\x04\x95" + LONG.pack(1 << 40) + b"N.",
    "nested frames": b"\x80\x04" + (b"\x95" + LONG.pack(9)) * 1000 + b"N.",
    "memo index": b"\x80\x02]r" + WORD.pack(1 << 31) + b".",
    "memo index in text": b"]p99999999999\n.",
    "memo index that is absent": b"\x80\x02j" + WORD.pack(1 << 31) + b".",
    "digits": b"I" + b"9" * 1_000_000 + b"\n.",
    "long digits": b"L" + b"9" * 1_000_000 + b"L\n.",
    "float text": b"F" + b"1" * 1_000_000 + b"\n.",
    "marks": b"(" * 1_000_000,
    "frozenset": b"\x80\x04(K\x01\x91.",
    "set": b"\x80\x04\x8f(K\x01\x90.",
    "set in a set": b"\x80\x04\x8f(\x8f\x90.",
    "itself": b"\x80\x02]q\x00h\x00a.",
    "deep lists": b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".",
    "deep dicts": b"\x80\x02" + b"}U\x01k" * 100_000 + b"N" + b"s" * 100_000 + b".",
    "nothing": b"",
    "stop": b".",
    "no stop": b"\x80\x04}",
    "pops": b"0" * 10,
    "unknown protocol": b"\x80\xff}.",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_pickle_that_is_no_snapshot(tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]) -> None:
    refusal(tmp_path, PROGRAMS[name])
    assert capfd.readouterr() == ("", "")


def refusal_by_a_fresh_process(tmp_path: Path, program: bytes, memory: int = MEMORY) -> tuple[str, int]:
    """What is said, and by how many bytes the reader's own memory grew. The tests' own process has much memory that it
    asked for and does not use, which a child may take without asking."""
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(program)
    done = subprocess.run(
        [sys.executable, "-c", _FRESH, str(path), str(memory)], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    said, grown = done.stdout.splitlines()
    return said, int(grown)


_FRESH = """
import resource, sys
from pathlib import Path
from trace_doctor.errors import TraceDoctorError
from trace_doctor.loaders.snapshot.unpickle import load_snapshot
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    load_snapshot(Path(sys.argv[1]), "snapshot.pickle", max_memory=int(sys.argv[2]))
    print("loaded")
except TraceDoctorError as error:
    print(error)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10)
"""


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(PROGRAMS["memo index"], id="a memo index makes the unpickler allocate as many slots"),
        pytest.param(b"\x80\x02](" + (b"(" + b"]" * 60_000 + b"l") * 60 + b"e.", id="lists of one byte each"),
        pytest.param(snapshot(text="a" * (256 << 20)), id="a text that is there"),
    ],
)
def test_more_memory_than_it_may_take(tmp_path: Path, program: bytes) -> None:
    said, grown = refusal_by_a_fresh_process(tmp_path, program)
    assert said.startswith("snapshot.pickle: ")
    assert "--max-memory" in said
    assert grown < MEMORY


def test_hashing_that_overflows_the_stack_of_c(tmp_path: Path) -> None:
    """`{((((...)))): None}` kills Python itself."""
    said = refusal(tmp_path, b"\x80\x02}" + b")" + b"\x85" * 1_000_000 + b"Ns.")
    assert "kills the reader" in said


def test_hashing_that_never_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key `(t, t)` with `t = (s, s)` and so on: each level doubles the work."""
    monkeypatch.setattr(plain_pickle, "_LEAST_SECONDS", 1)
    said = refusal(tmp_path, b"\x80\x02})" + b"2\x86" * 60 + b"Ns.")
    assert "takes more than 1 s" in said


def doubled(levels: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(levels):
        made = [made, made]
    return made


CYCLE: list[Any] = []
CYCLE.append(CYCLE)
BLOCK = {"size": 512, "state": "inactive", "requested_size": 0}
ENTRY = {"action": "alloc", "addr": 1, "size": 1, "stream": 0}
FRAME = {"filename": "t.py", "line": 1, "name": "f"}
SEGMENT = {"device": 0, "address": 1, "total_size": 512, "stream": 0, "blocks": [BLOCK]}
LAUGHS = doubled(60)

CONTENTS: dict[str, dict[str, Any]] = {
    "one trace a hundred thousand times": {"device_traces": [[ENTRY] * 100_000] * 100_000},
    "one segment a hundred thousand times": {
        "segments": [{**SEGMENT, "blocks": [BLOCK] * 100_000}] * 100_000
    },
    "laughs as traces": {"device_traces": LAUGHS},
    "laughs as a file name": {"device_traces": [[{**ENTRY, "frames": [{**FRAME, "filename": LAUGHS}]}]]},
    "laughs as an action": {"device_traces": [[{**ENTRY, "action": LAUGHS}]]},
    "laughs as an annotation": {"external_annotations": [{"name": LAUGHS, "stage": "START", "time_us": 1}]},
    "frames in a circle": {"device_traces": [[{**ENTRY, "frames": CYCLE}]]},
    "a cycle of segments": {"segments": CYCLE},
    "traces in a mapping": {"device_traces": {0: [ENTRY]}},
    "text for a trace": {"device_traces": ["alloc"]},
    "NaN for a time": {"device_traces": [[{**ENTRY, "time_us": float("nan")}]]},
    "infinity for a size": {"device_traces": [[{**ENTRY, "size": float("inf")}]]},
    "a size of 100 bits": {"device_traces": [[{**ENTRY, "size": 1 << 100}]]},
    "a negative size": {"device_traces": [[{**ENTRY, "size": -1}]]},
    "a negative segment": {"segments": [{**SEGMENT, "total_size": -1}]},
    "a negative address": {"segments": [{**SEGMENT, "address": -512}]},
    "two segments at one place": {"segments": [SEGMENT, {**SEGMENT, "address": 512, "blocks": [BLOCK]}]},
    "a device of 60 bits": {"segments": [{**SEGMENT, "device": 1 << 60}]},
    "a line of 70 bits": {"device_traces": [[{**ENTRY, "frames": [{**FRAME, "line": None}]}]]},
    "an unknown state": {"segments": [{**SEGMENT, "blocks": [{**BLOCK, "state": "odd"}]}]},
    "blocks as text": {"segments": [{**SEGMENT, "blocks": "blocks"}]},
    "settings as a list": {"allocator_settings": [1]},
    "a history of nothing": {
        "segments": [{**SEGMENT, "blocks": [{"size": 1, "state": "inactive", "history": 3}]}]
    },
}


@pytest.mark.parametrize("name", CONTENTS)
def test_a_snapshot_that_contradicts_the_format(tmp_path: Path, name: str) -> None:
    assert "damaged memory snapshot" in refusal(tmp_path, snapshot(**CONTENTS[name]))


def test_pinned_memory_that_overlaps_is_named(tmp_path: Path) -> None:
    pinned = [
        {**SEGMENT, "blocks": [{**BLOCK, "state": "active_allocated"}], "address": a} for a in (4096, 4100)
    ]
    loaded = load(tmp_path, snapshot(segments=[SEGMENT], host_segments=pinned))
    assert loaded.pinned is None
    assert loaded.warnings == ("the record of pinned host memory is damaged and was not read",)


def test_settings_that_are_nested_are_left_out(tmp_path: Path) -> None:
    loaded = load(tmp_path, snapshot(allocator_settings={"bomb": LAUGHS, "expandable_segments": True}))
    assert loaded.allocator_settings == {"expandable_segments": True}


def test_a_gzip_bomb(tmp_path: Path) -> None:
    """4 GB of one text in a few megabytes."""
    import gzip

    block = gzip.compress(bytes(64 << 20), 9)
    head = gzip.compress(b"\x80\x04\x8d" + LONG.pack(4 << 30))
    assert "--max-memory" in refusal(tmp_path, head + block * 16)


def test_a_limit_too_small_names_the_option(tmp_path: Path) -> None:
    whole = snapshot(allocator_settings={"text": "a" * (48 << 20)})
    said, _ = refusal_by_a_fresh_process(tmp_path, whole, 32 << 20)
    assert "needs more than 32 MB of memory (--max-memory)" in said
    assert refusal_by_a_fresh_process(tmp_path, whole, 256 << 20)[0] == "loaded"


def test_the_bytes_of_a_pickle_are_limited_on_every_system(tmp_path: Path) -> None:
    """Without the limits that Linux sets to a process: the reader itself stops, also inside a small gzip."""
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(gzip.compress(snapshot(filler=["x" * 1000] + [str(i) for i in range(200_000)])))
    assert len(loader.read_snapshot(path, "snapshot.pickle", most=4 << 20)) == 0
    with pytest.raises(OutOfMemory):
        loader.read_snapshot(path, "snapshot.pickle", most=1 << 20)
