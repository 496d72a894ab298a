"""Snapshots of torch 2.14 and later: texts that the program gave to its memory, and the host's pinned memory."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

import trace_doctor
from trace_doctor.evidence.memory.notes import notes_of
from trace_doctor.evidence.memory.timeline import replay
from trace_doctor.loaders.snapshot.unpickle import load_snapshot
from trace_doctor.model import Result
from trace_doctor.reporters import render
from trace_doctor.testing import MIB, SnapshotBuilder

LOADER = {"filename": "/home/me/loader.py", "line": 7, "name": "pin"}


def analyzed(tmp_path: Path, data: dict[str, Any]) -> Result:
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(data))
    return trace_doctor.analyze(path)


def trained() -> dict[str, Any]:
    b = SnapshotBuilder()
    b.train(3)
    return b.data()


def owners(result: Result) -> dict[str, int]:
    return dict(result.memory_ledger[0].by_frame)


def test_texts_are_shown_with_the_blocks_they_were_given_to(tmp_path: Path) -> None:
    data = trained()
    entries = data["device_traces"][0]
    forward = [e for e in entries if e["action"] == "alloc" and e["size"] == 100 * MIB]
    for first, second in zip(forward[::2], forward[1::2], strict=True):
        first["user_metadata"], second["user_metadata"] = '{"layer":0}', ""
        label = {**second, "action": "annotate", "user_metadata": "packed"}
        entries.insert(entries.index(second) + 1, label)
    plain, noted = owners(analyzed(tmp_path, trained())), owners(analyzed(tmp_path, data))
    assert plain["forward() (/home/me/model.py:30)"] == plain["forward() (/home/me/model.py:31)"] == 100 * MIB
    assert noted['forward() (/home/me/model.py:30) "{"layer":0}"'] == 100 * MIB
    assert noted['forward() (/home/me/model.py:31) "packed"'] == 100 * MIB
    assert sum(noted.values()) == sum(plain.values())


def test_a_text_goes_to_the_block_that_lived_at_its_address(tmp_path: Path) -> None:
    b = SnapshotBuilder()
    first = b.alloc(8 * MIB)
    b.free(first)
    second = b.alloc(8 * MIB)
    assert second.addr == first.addr
    data = b.data()
    data["device_traces"][0].append(
        {**data["device_traces"][0][-1], "action": "annotate", "user_metadata": "second"}
    )
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(data))
    snapshot = load_snapshot(path, path.name)
    history = replay(snapshot, 0)
    assert not isinstance(history, str)
    notes = notes_of(snapshot, history)
    assert {int(history.born[block]): text for block, text in notes.items()} == {
        int(history.born.max()): "second"
    }
    assert snapshot.warnings == ()


def test_synthetic_pairs_are_no_allocations(tmp_path: Path) -> None:
    """They name an address that is in use already: replayed, the history would contradict itself."""
    data = trained()
    entries = data["device_traces"][0]
    at = next(n for n, e in enumerate(entries) if e["action"] == "alloc")
    pair = [
        {**entries[at], "action": a, "internal_metadata": "mallocWithAddress"}
        for a in ("alloc", "free_completed")
    ]
    entries[at + 1 : at + 1] = pair
    assert owners(analyzed(tmp_path, data)) == owners(analyzed(tmp_path, trained()))


@pytest.mark.parametrize("nested", [False, True])
def test_pinned_memory_is_no_memory_of_a_gpu(tmp_path: Path, nested: bool) -> None:
    block = {
        "size": 64 * MIB,
        "requested_size": 64 * MIB,
        "address": 4096,
        "state": "active_allocated",
        "frames": [LOADER],
    }
    history = [
        {"action": "alloc", "addr": 4096, "size": 64 * MIB, "stream": 0, "time_us": 5, "frames": [LOADER]}
    ]
    data = trained() | {
        "host_segments": [{"address": 4096, "total_size": 128 * MIB, "stream": 0, "blocks": [block]}],
        "host_traces": [history] if nested else history,
    }
    result, plain = analyzed(tmp_path, data), analyzed(tmp_path, trained())
    (row,) = result.memory_pinned
    assert (row.device, row.held_bytes, row.reserved_bytes) == (-1, 64 * MIB, 128 * MIB)
    assert row.by_frame == [("pin() (/home/me/loader.py:7)", 64 * MIB)]
    assert result.memory_ledger == plain.memory_ledger
    assert result.summary.peak_allocated_bytes == plain.summary.peak_allocated_bytes
    for form in ("text", "html"):
        assert "pinned host memory" in render(result, form)
        assert "pinned host memory" not in render(plain, form)


def test_damage_to_the_pinned_part_costs_nothing_else(tmp_path: Path) -> None:
    data = trained() | {"host_segments": [{"blocks": 3}], "host_traces": [[]]}
    result = analyzed(tmp_path, data)
    assert result.memory_pinned == []
    assert owners(result) == owners(analyzed(tmp_path, trained()))
    assert any("pinned host memory is damaged" in w for i in result.inputs for w in i.warnings)


def test_memory_of_private_pools(tmp_path: Path) -> None:
    data = trained()
    segment = data["segments"][0]
    segment["segment_pool_id"] = (0, 3)
    result, plain = analyzed(tmp_path, data), analyzed(tmp_path, trained())
    assert (result.memory_ledger[0].private_bytes, plain.memory_ledger[0].private_bytes) == (
        segment["total_size"],
        0,
    )
    for form in ("text", "html"):
        assert "in private pools" in render(result, form)
        assert "in private pools" not in render(plain, form)
