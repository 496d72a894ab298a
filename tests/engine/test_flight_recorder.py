"""A folder of flight recorder dumps: what the diagnosis says of it, alone and next to traces."""

from __future__ import annotations

import gzip
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from trace_doctor import analyze
from trace_doctor.config import defaults
from trace_doctor.engine import Sizes, examine, summary_kinds
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.distributed.flight.records import FlightRecords
from trace_doctor.evidence.distributed.summary_format import MOST_WRITTEN, decode, encode
from trace_doctor.model import Finding
from trace_doctor.recording.options import RECORDING_FILE, capture_file
from trace_doctor.testing import FlightBuilder, RunBuilder, captures_of
from trace_doctor_rules.comms import _flight_cases as cases


def _write(folder: Path, ranks: tuple[FlightBuilder, ...]) -> None:
    folder.mkdir(exist_ok=True)
    for b in ranks:
        b.write(folder / f"comm_lib_trace_rank_{b.rank}")


def _hang(findings: list[Finding]) -> Finding:
    [finding] = [f for f in findings if f.code == "TD608"]
    return finding


def test_dumps_alone_name_the_rank_and_the_line_first(tmp_path: Path) -> None:
    _write(tmp_path, cases.hang(3))
    result = analyze(tmp_path)
    assert (
        result.summary.verdict == "Rank 3 never reached all_reduce #4 of the default group, at train.py:41."
    )
    finding = _hang(result.findings)
    assert (finding.severity, finding.location.file, finding.location.line) == ("critical", "train.py", 41)
    assert finding.location.ranks == [3] and result.ranks.read == [0, 1, 2, 3]
    assert {i.kind for i in result.inputs} == {"flight_recorder"} and not any(
        i.too_little for i in result.inputs
    )


def test_a_mismatch_comes_before_the_hang_that_it_explains(tmp_path: Path) -> None:
    _write(tmp_path, cases.sequences(*[["all_gather", "all_reduce"]] * 3, ["all_reduce"]))
    result = analyze(tmp_path)
    assert [f.code for f in result.findings] == ["TD607", "TD608"]
    assert result.findings[1].refers_to == ["TD607-1"]


def test_ranks_read_one_after_the_other_give_the_same_finding(tmp_path: Path) -> None:
    _write(tmp_path / "fr", cases.hang(3))
    held, streamed = analyze(tmp_path / "fr"), analyze(tmp_path / "fr", summaries=tmp_path / "kept")
    assert streamed.findings == held.findings and _hang(held.findings).location.ranks == [3]


def test_a_dump_belongs_to_the_trace_of_its_rank_and_all_dumps_are_one_job(tmp_path: Path) -> None:
    """The trace of a few early steps ended long before the hang; that of rank 3 was never written."""
    _write(tmp_path, cases.hang(3))
    for rank in range(3):
        b = RunBuilder(rank=rank, world_size=4)
        for _ in range(5):
            with b.step(), b.op("aten::mm"):
                b.launch(100)
        b.write(tmp_path / f"rank{rank}.json")
    result = analyze(tmp_path)
    assert _hang(result.findings).location.ranks == [3]
    assert [i.kind for i in result.inputs if i.rank == 0] == ["trace", "flight_recorder"]


@pytest.mark.parametrize("folder", ["", "fr"])
def test_dumps_in_a_recording_belong_to_its_ranks(tmp_path: Path, folder: str) -> None:
    """The finding shows how long the collective took in the trace of the recording, found by process group and number. That of
    rank 3 has no end: it is killed before it writes a trace."""
    trace, *dumps = cases.traced()
    assert isinstance(trace, RunBuilder)
    packed = gzip.compress(trace.write(tmp_path / "t.json").read_bytes())
    (tmp_path / "t.json").unlink()
    (tmp_path / capture_file(0, "light")).write_bytes(packed)
    (tmp_path / RECORDING_FILE).write_text('{"ranks": [0]}')
    _write(tmp_path / folder, tuple(b for b in dumps if isinstance(b, FlightBuilder)))
    held, streamed = analyze(tmp_path), analyze(tmp_path, summaries=tmp_path / ".kept")
    assert streamed.findings == held.findings
    [trace_row, dump_row] = [n for n, i in enumerate(held.inputs) if i.rank == 0]
    assert held.inputs[dump_row].kind == "flight_recorder" and held.inputs[dump_row].capture == trace_row
    tables = {t.title: t.rows for t in _hang(held.findings).evidence}
    assert tables["The same collective in the traces, earlier"] == [[0, 3, 100.0, 100.0, 1, 3]]


def test_dumps_of_two_runs_in_one_folder_are_two_jobs(tmp_path: Path) -> None:
    _write(tmp_path, cases.hang(3))
    later = cases.hang(1)
    for b in later:
        for entry in b._entries:
            entry["time_created_ns"] += 10**15
        b._now_s += 10**6
        b.write(tmp_path / f"nccl_trace_rank_{b.rank}")
    blamed = [f.location.ranks for f in analyze(tmp_path).findings if f.code == "TD608"]
    assert sorted(blamed) == [[1], [3]]


def test_the_records_of_a_rank_are_kept_with_its_summary() -> None:
    own, again = _kept(2000, lambda n: 1000 + n % 40)
    assert len(again.sequence) == 2000 and not again.overwritten and not again.unread
    assert (
        (again.sequence == own.sequence).all() and again.stacks == own.stacks and again.groups == own.groups
    )


def test_of_more_calls_than_a_summary_holds_the_newest_are_kept_and_the_rest_is_unread() -> None:
    sizes = random.Random(0)
    own, again = _kept(9000, lambda _: sizes.randrange(1 << 40))
    kept = len(again.sequence)
    assert again.unread == 9000 - kept and again.overwritten and kept in (2000, 5000)
    assert (again.elements_in == own.elements_in[-kept:]).all()


def _kept(calls: int, elements: Callable[[int], int]) -> tuple[FlightRecords, FlightRecords]:
    """The records of a dump, and what its summary as bytes has of them."""
    b = FlightBuilder(0, 64, groups={"tp": list(range(8))})
    for n in range(calls):
        kind = ("all_reduce", "_all_gather_base", "reduce_scatter")[n % 3]
        b.call(kind, elements(n), group="tp" if n % 2 else "default_pg")
    [capture] = captures_of(b)
    rules = [r for r in map(defaults().rule, defaults().settings.chosen()) if r.code == "TD608"]
    summary = examine(Facts(capture), rules, Sizes.among(1, 1)).summary
    data = encode(summary)
    assert len(data) < MOST_WRITTEN
    return summary[FlightRecords], decode(data, summary_kinds(rules))[FlightRecords]


def test_each_machine_may_have_a_folder_of_its_own(tmp_path: Path) -> None:
    ranks = cases.hang(3)
    _write(tmp_path / "node0", ranks[:2])
    _write(tmp_path / "node1", ranks[2:])
    assert _hang(analyze(tmp_path).findings).location.ranks == [3]
