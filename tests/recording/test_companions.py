"""What lies beside the traces of a recording: snapshots are one story on the same clock, compile logs belong to their rank."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from read_captures import read_captures

from trace_doctor.api import analyze
from trace_doctor.recording.options import capture_file
from trace_doctor.testing import RunBuilder, SnapshotBuilder
from trace_doctor.testing.run_builder import BASE_NS

Written = Any  # conftest's
SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"


def snapshots(folder: Path, now_us: int = 1_000_000) -> None:
    """A peak inside a step, and a boundary at which little is left: the boundary's record goes on from the peak's."""
    for role in ("peak", "boundary"):
        b = SnapshotBuilder()
        b.now = now_us
        kept = b.alloc(4 << 20)
        more = [b.alloc(32 << 20) for _ in range(3)]
        if role == "boundary":
            for block in more:
                b.free(block)
        del kept
        b.write(folder / capture_file(0, role))  # type: ignore[arg-type]


def test_peak_and_boundary_are_one_memory_story(tmp_path: Path, written: Written) -> None:
    folder = written.recording(tmp_path)
    snapshots(folder)
    result = analyze(folder)
    assert [(i.role, i.run_steps) for i in result.inputs if i.kind == "snapshot"] == [
        ("boundary", (28, 30)), ("peak", (28, 30)),
    ]  # fmt: skip
    assert len(result.memory_ledger) == 1 and len(result.memory_timeline) == 1
    assert result.memory_ledger[0].peak_bytes == 100 << 20
    assert len({(f.code, f.fingerprint) for f in result.findings}) == len(result.findings)


def test_traces_and_snapshots_share_one_clock(tmp_path: Path, written: Written) -> None:
    folder = written.recording(tmp_path)
    snapshots(folder, BASE_NS // 1000 + 2_500_000)
    seconds = {i.role: i.seconds or (-1.0, -1.0) for i in analyze(folder).inputs}
    assert seconds["light"] == (0, pytest.approx(0.008, abs=0.001))
    assert seconds["detailed"][0] == 0  # both builders start at the same moment
    assert seconds["peak"][0] == seconds["boundary"][0] == pytest.approx(2.499, abs=0.001)
    assert seconds["peak"][1] < seconds["boundary"][1] < 2.6
    snapshots(folder, 1_000_000)
    assert [i.seconds for i in analyze(folder).inputs] == [None] * 4


def compile_log(pid: int, reason: str, rank: int | None = None) -> str:
    """What TORCH_TRACE holds of it."""

    def line(header: dict[str, object], payload: str = "") -> str:
        said = header if rank is None else {**header, "rank": rank}
        text = "".join(f"\t{part}\n" for part in payload.splitlines())
        return f"V1121 12:56:07.760000 {pid} torch/_dynamo/x.py:5098] {json.dumps(said)}\n{text}"

    def compiled(number: int, first: int, name: str) -> str:
        said = {
            "co_name": name,
            "co_filename": "/home/me/train.py",
            "co_firstlineno": first,
            "compile_id": f"{number}/0",
        }
        return line({"compilation_metrics": said, "frame_id": number, "frame_compile_id": 0})

    why = (
        f"Graph break in user code at /home/me/train.py:17\nGraph Break Reason: x\n\n{reason}\n  Explanation: It is so.\n"
        f'  Hint: Do without.\n\nUser code traceback:\n  File "/home/me/train.py", line 17, in forward\n    print(x)\n'
    )
    broken = {"artifact": {"name": "dynamo_graph_break_reason"}, "frame_id": 0, "frame_compile_id": 0}
    names = compiled(0, 5, "forward") + compiled(1, 17, "torch_dynamo_resume_in_forward_at_17")
    return line(broken, why) + names


def test_each_rank_quotes_its_own_compile_log(tmp_path: Path, written: Written) -> None:
    """Logs are told apart by the process that wrote them; one of a process that was not recorded is nobody's."""
    folder = written.recording(tmp_path, written.compiled, ranks=2)
    logs = folder / "torch_trace"
    logs.mkdir()
    (logs / "dedicated_log_torch_trace_aaa.log").write_text(compile_log(101, "Said by rank 1"))
    (logs / "dedicated_log_torch_trace_bbb.log").write_text(compile_log(100, "Said by rank 0"))
    (logs / "dedicated_log_torch_trace_ccc.log").write_text(compile_log(999, "Said by a compile worker"))
    captures, _ = read_captures([folder])
    assert [[log.pid for log in c.torch_logs] for c in captures] == [[100], [101]]
    result = analyze(folder)
    [found] = [f for f in result.findings if f.code == "TD501"]
    assert f"Said by rank {found.rank}" in found.message
    [says] = [t for t in found.evidence if "TORCH_TRACE" in t.title]
    assert "Do without." in str(says.rows)
    assert [(i.rank, i.path[-7:]) for i in result.inputs if i.kind == "torch_trace"] == [
        (0, "bbb.log"),
        (1, "aaa.log"),
    ]


def test_a_log_of_another_rank_is_of_that_rank(tmp_path: Path, written: Written) -> None:
    """Beside the trace of rank 0 lies the log of rank 7."""
    b = RunBuilder()
    for step in range(4):
        with b.step():
            written.compiled(b, step)
    b.write(tmp_path / "rank0.json")
    (tmp_path / "dedicated_log_torch_trace_rank_7_aaa.log").write_text(compile_log(999, "Said by rank 7", 7))
    result = analyze(tmp_path)
    assert [(i.rank, i.kind) for i in result.inputs] == [(0, "trace"), (7, "torch_trace")]
    assert "Said by rank 7" not in str(result.findings)


def test_a_real_recording_quotes_why_its_graph_breaks() -> None:
    [found] = [f for f in analyze(SAMPLES / "graph_break_item/cpu/fault").findings if f.code == "TD501"]
    assert "Unsupported Tensor.item() call" in found.message
    assert (found.location.file, found.location.line) == ("fault.py", 22)
