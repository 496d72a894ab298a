"""Allocator snapshots: every layout is read, nothing of a file is ever executed, and a refusal is one clear line."""

from __future__ import annotations

import collections
import gc
import gzip
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trace_doctor.errors import DamagedCapture, NotACapture
from trace_doctor.loaders.snapshot.unpickle import load_snapshot
from trace_doctor.snapshot import NO_STACK, Action, BlockState, Snapshot
from trace_doctor.testing import MIB, SnapshotBuilder

PROTOCOLS = range(6)
FRAME = {"filename": "/home/me/train.py", "line": 3, "name": "main"}


def load(tmp_path: Path, data: Any, protocol: int = 4) -> Snapshot:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(data if isinstance(data, bytes) else pickle.dumps(data, protocol=protocol))
    return load_snapshot(path, "logs/snapshot.pickle")


def trained() -> SnapshotBuilder:
    b = SnapshotBuilder()
    b.train(2)
    return b


def segment(*blocks: dict[str, Any], address: int = 0x1000, **fields: Any) -> dict[str, Any]:
    total = sum(b["size"] for b in blocks)
    return {
        "device": 0,
        "address": address,
        "total_size": total,
        "stream": 0,
        "blocks": list(blocks),
    } | fields


def same(a: Snapshot, b: Snapshot) -> bool:
    columns = [n for n, v in vars(a).items() if isinstance(v, np.ndarray)]
    return (
        a.frames == b.frames
        and a.stacks == b.stacks
        and all((getattr(a, c) == getattr(b, c)).all() for c in columns)
    )


# ------------------------------------------------------------------ layouts


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_pickle_protocol_gives_the_same_columns(tmp_path: Path, protocol: int) -> None:
    data = trained().data()
    assert same(load(tmp_path, data, protocol), load(tmp_path, data))


def test_gzipped(tmp_path: Path) -> None:
    data = trained().data()
    assert same(load(tmp_path, gzip.compress(pickle.dumps(data))), load(tmp_path, data))


def test_entries_and_blocks(tmp_path: Path) -> None:
    b = SnapshotBuilder(device=1)
    older = b.held(5 * MIB)
    with b.forward("/home/me/model.py", 12):
        kept = b.alloc(3 * MIB + 1)
    b.oom(7 * MIB, device_free=11)
    snapshot = load(tmp_path, b.data())
    assert snapshot.devices == (1,)
    assert snapshot.action.tolist() == [Action.ALLOC, Action.OOM]  # the segment of the older block had room
    assert snapshot.device.tolist() == [1, 1]
    assert snapshot.addr.tolist() == [kept.addr, 11]  # of an oom entry: what was free on the device
    assert snapshot.size.tolist() == [3 * MIB + 1, 7 * MIB]
    active = snapshot.block_state == BlockState.ACTIVE
    assert snapshot.block_addr[active].tolist() == [older.addr, kept.addr]
    assert snapshot.block_requested[active].tolist() == [5 * MIB, 3 * MIB + 1]
    assert any(
        f.filename == "/home/me/model.py" and f.line == 12 for f in snapshot.frames_of(int(snapshot.stack[0]))
    )
    assert snapshot.frames_kind == "all"
    assert snapshot.has_clock


@pytest.mark.parametrize(("stacks", "kind"), [("python", "python"), ("cpp", "cpp"), (None, "none")])
def test_which_frames_were_recorded(stacks: Any, kind: str) -> None:
    b = SnapshotBuilder(stacks=stacks)
    b.train(1)
    assert b.snapshot().frames_kind == kind


def test_an_empty_stack_is_not_the_same_as_none(tmp_path: Path) -> None:
    """With Python frames only, backward has an empty stack; without recording there is no stack at all."""
    entries = [
        {"action": "alloc", "addr": 1, "size": 1, "stream": 0, "frames": []},
        {"action": "alloc", "addr": 2, "size": 1, "stream": 0},
    ]
    snapshot = load(tmp_path, {"segments": [], "device_traces": [entries]})
    assert snapshot.stack[0] >= 0
    assert snapshot.frames_of(int(snapshot.stack[0])) == []
    assert snapshot.stack[1] == NO_STACK


def test_legacy_list_of_segments(tmp_path: Path) -> None:
    """`torch.cuda.memory_snapshot()`: no history, and before torch 2.1 no address of a block."""
    data = [segment({"size": 512, "state": "active_allocated"}, {"size": 1536, "state": "inactive"})]
    snapshot = load(tmp_path, data)
    assert snapshot.block_addr.tolist() == [0x1000, 0x1200]
    assert snapshot.block_requested[0] == 512
    assert not snapshot.has_history
    assert len(snapshot) == 0


def test_blocks_with_a_history_as_torch_2_0_wrote_them(tmp_path: Path) -> None:
    block = {
        "size": 1024,
        "state": "active_allocated",
        "history": [
            {"addr": 0x1000, "frames": [FRAME], "real_size": 1000},
            {"addr": 0x1000, "frames": [], "real_size": 7},
        ],
    }
    snapshot = load(tmp_path, {"segments": [segment(block)], "device_traces": [[]]})
    assert snapshot.block_requested.tolist() == [1000]
    assert snapshot.frames_of(int(snapshot.block_stack[0]))[0].name == "main"
    assert snapshot.torch_version.max == "2.0"


def test_without_a_clock(tmp_path: Path) -> None:
    b = SnapshotBuilder(clock=False)
    b.train(1)
    snapshot = load(tmp_path, b.data())
    assert not snapshot.has_clock
    assert (snapshot.time_us == -1).all()
    assert snapshot.torch_version.max == "2.1"


def test_pending_blocks_and_unknown_actions(tmp_path: Path) -> None:
    """`active_pending_free` is what torch writes, whatever its documentation says; NPU dumps have actions of their own."""
    data = {
        "segments": [segment({"size": 512, "state": "active_pending_free", "requested_size": 500})],
        "device_traces": [[{"action": "workspace_snapshot", "addr": 0, "size": 0, "stream": 0}]],
    }
    snapshot = load(tmp_path, data)
    assert snapshot.block_state.tolist() == [BlockState.PENDING]
    assert "workspace_snapshot" in snapshot.warnings[0]


def test_lower_bounds_of_the_torch_version(tmp_path: Path) -> None:
    assert load(tmp_path, {"segments": [], "device_traces": []}).torch_version.min == "1.13"
    assert load(tmp_path, {"segments": [], "allocator_settings": {}}).torch_version.min == "2.1"
    assert load(tmp_path, {"segments": [], "external_annotations": []}).torch_version.min == "2.6"


def test_annotations_that_were_written_twice_count_once(tmp_path: Path) -> None:
    made = trained().data()
    once = load(tmp_path, made).annotations
    for doubled in (
        made["external_annotations"] * 3,
        [a for a in made["external_annotations"] for _ in range(2)],
    ):
        assert load(tmp_path, made | {"external_annotations": doubled}).annotations == once != ()


def test_stacks_are_shared(tmp_path: Path) -> None:
    """Equal stacks are one, whether or not the pickle shares their lists."""
    entries = [
        {"action": "alloc", "addr": i, "size": 1, "stream": 0, "frames": [dict(FRAME), dict(FRAME, line=4)]}
        for i in range(50)
    ]
    snapshot = load(tmp_path, {"segments": [], "device_traces": [entries]})
    assert len(snapshot.stacks) == 1
    assert len(snapshot.frames) == 2


# ------------------------------------------------------------------ hostile and foreign files


class _Runs:
    """A pickle that runs a command when it is loaded."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("place", ["alone", "inside"])
def test_nothing_of_a_file_is_executed(tmp_path: Path, protocol: int, place: str) -> None:
    mark = tmp_path / "executed"
    bomb: Any = _Runs(f"touch {mark}")
    data = bomb if place == "alone" else trained().data() | {"allocator_settings": {"x": bomb}}
    with pytest.raises(NotACapture, match=r"system.*Nothing of it was executed") as refusal:
        load(tmp_path, data, protocol)
    assert not mark.exists()
    assert "\n" not in str(refusal.value)
    assert str(refusal.value).startswith("logs/snapshot.pickle: ")


@pytest.mark.parametrize(
    "program",
    [
        b"cbuiltins\neval\n(S'1'\ntR.",
        b"(S'touch executed'\nios\nsystem\n.",
        b"\x80\x04\x8c\x08builtins\x8c\x04exec\x93\x8c\x01x\x85R.",
        b"\x80\x02\x82\x01.",
        b"Psome id\n.",
        b"\x80\x04\x8c\x02idQ.",
        b"\x80\x04}\x8c\x01xR.",
        b"\x80\x04]\x94h\x00b.",
        b"\x80\x05\x97.",
        b"(" * 10_000,
        b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\x7fx",
        b".",
        b"\x00\x01\x02",
    ],
)
def test_hostile_programs_are_refused_in_one_line(
    tmp_path: Path, program: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises((NotACapture, DamagedCapture)) as refusal:
        load(tmp_path, program)
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 300
    assert not (tmp_path / "executed").exists()


def test_the_collector_runs_again_afterwards(tmp_path: Path) -> None:
    load(tmp_path, trained().data())
    assert gc.isenabled()
    with pytest.raises(NotACapture):
        load(tmp_path, {"entries": []})
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("data", "what"),
    [
        ({"version": "2.5", "pg_config": {}, "pg_status": {}, "entries": []}, "flight-recorder"),
        (collections.OrderedDict(weight=1), "OrderedDict"),
        ({"epoch": 3, "loss": 0.5}, "'epoch'"),
        ([1, 2, 3], "list of 3"),
        ("text", "str"),
        ({}, "nothing in it"),
    ],
)
def test_other_pickles_are_named(tmp_path: Path, data: Any, what: str) -> None:
    with pytest.raises(NotACapture, match=what):
        load(tmp_path, data)


def test_other_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(NotACapture, match=r"torch\.save"):
        load(tmp_path, b"PK\x03\x04" + bytes(100))
    with pytest.raises(NotACapture, match="empty"):
        load(tmp_path, b"")
    with pytest.raises(NotACapture, match="cannot be read as a pickle"):
        load(tmp_path, b'{"traceEvents": []}')


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6, 0.9, 0.999])
@pytest.mark.parametrize("gzipped", [False, True])
def test_a_cut_file_is_damaged(tmp_path: Path, share: float, gzipped: bool) -> None:
    whole = pickle.dumps(trained().data())
    whole = gzip.compress(whole) if gzipped else whole
    with pytest.raises((DamagedCapture, NotACapture)) as refusal:
        load(tmp_path, whole[: int(share * len(whole))])
    assert "\n" not in str(refusal.value)
    if share >= 0.3 and not gzipped:
        assert isinstance(refusal.value, DamagedCapture)


@pytest.mark.parametrize(
    "more", [pickle.dumps(trained().data()), b"more", b"\n"], ids=["second", "text", "line"]
)
@pytest.mark.parametrize("gzipped", [False, True])
def test_a_file_that_goes_on_after_its_snapshot_is_damaged(
    tmp_path: Path, more: bytes, gzipped: bool
) -> None:
    pieces = [pickle.dumps(trained().data()), more]
    with pytest.raises(DamagedCapture, match="goes on after its memory snapshot"):
        load(tmp_path, b"".join(map(gzip.compress, pieces) if gzipped else pieces))


@pytest.mark.parametrize(
    "entry",
    [
        {"action": "alloc"},
        {"action": "alloc", "addr": "here", "size": 1, "stream": 0},
        {"action": "alloc", "addr": 1, "size": -5, "stream": 0},
        {"action": "alloc", "addr": 1 << 70, "size": 1, "stream": 0},
        {"action": ["alloc"], "addr": 1, "size": 1, "stream": 0},
        {"action": "alloc", "addr": 1, "size": 1, "stream": 0, "frames": 3},
        "alloc",
        None,
    ],
)
def test_entries_that_contradict_the_format_are_damage(tmp_path: Path, entry: Any) -> None:
    with pytest.raises(DamagedCapture, match="damaged memory snapshot"):
        load(tmp_path, {"segments": [], "device_traces": [[entry]]})


# ------------------------------------------------------------------ real files


@pytest.mark.captures
def test_every_real_snapshot_loads(snapshot_file: Path) -> None:
    snapshot = load_snapshot(snapshot_file, snapshot_file.name)
    assert len(snapshot.block_addr)
    assert (np.bincount(snapshot.block_segment, weights=snapshot.block_size) == snapshot.segment_size).all()
    assert len(snapshot) == len(snapshot.stack) == len(snapshot.time_us)
