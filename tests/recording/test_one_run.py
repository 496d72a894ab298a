"""All files of a recording are one run: one capture for each rank, one finding for a fault, times of the light trace."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from trace_doctor.api import analyze, diff, read_captures
from trace_doctor.errors import NoCaptures
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.call_sites import CallSites
from trace_doctor.evidence.nesting import Nesting
from trace_doctor.evidence.operator_inputs import OperatorInputs
from trace_doctor.evidence.steps import Steps
from trace_doctor.evidence.syncs import Syncs
from trace_doctor.evidence.threads import Threads
from trace_doctor.model import Result
from trace_doctor.recording.options import capture_file, rank_file
from trace_doctor.reporters import render
from trace_doctor.run import Capture, Cat, Run
from trace_doctor.testing import RunBuilder, SnapshotBuilder
from trace_doctor.testing.run_builder import BASE_NS
from trace_doctor_rules.kernels.unaligned_dims import UnalignedDims

Script = Callable[[RunBuilder, int], None]
SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
FRAME_US = 60
"""What a Python frame takes longer in the detailed trace: far more than in truth."""


def reads_the_loss(b: RunBuilder, step: int) -> None:
    """A step that waits for its loss in `log`, a function of train.py."""
    with frame(b, "train.py", 20, "train_step"):
        with b.op("aten::mm", dims=[[64, 64], [64, 64]], types=["float", "float"]):
            b.launch(900)
        with b.op("aten::relu", dims=[[64, 64]], types=["float"]):
            b.launch(100)
        with frame(b, "train.py", 41, "log"):
            b.item()
    with b.optimizer_step():
        for _ in range(60):
            with b.op("aten::add_", us=5):
                b.launch(4)


class frame:
    """A Python frame, and what recording it takes."""

    def __init__(self, b: RunBuilder, file: str, line: int, function: str) -> None:
        self._b, self._made = b, b.python(file, line, function)

    def __enter__(self) -> None:
        self._made.__enter__()
        if self._b.meta["with_stack"]:
            self._b.wait(FRAME_US)

    def __exit__(self, *_: object) -> None:
        self._made.__exit__(None, None, None)


def trace(script: Script, *, detailed: bool, rank: int | None = None, steps: range = range(5)) -> RunBuilder:
    b = RunBuilder(stacks=detailed, shapes=detailed, rank=rank, world_size=1 if rank is None else 2)
    with frame(b, "train.py", 60, "main"):
        for n in steps:
            with b.step(n):
                script(b, n)
    return b


def recording(
    folder: Path, script: Script = reads_the_loss, *, ranks: int = 1, plain_ms: float = 1.05
) -> Path:
    """A recording of a script, as `record` leaves it."""
    folder.mkdir(exist_ok=True)
    rows = ["rank,step,phase,milliseconds,loss"]
    for rank in range(ranks):
        number = None if ranks == 1 else rank
        trace(script, detailed=False, rank=number, steps=range(20, 25)).write(folder / "light.json")
        trace(script, detailed=True, rank=number, steps=range(25, 28)).write(folder / "detailed.json")
        for role in ("light", "detailed"):
            pack(folder / f"{role}.json", folder / capture_file(rank, role))
        phases = [("timing", 0, 19), ("light", 20, 24), ("detailed", 25, 27), ("memory", 28, 30)]
        said = {
            "rank": rank,
            "world_size": ranks,
            "pid": 100 + rank,
            "phases": [{"name": n, "first_step": a, "last_step": z} for n, a, z in phases],
            "warnings": [],
        }
        (folder / rank_file(rank)).write_text(json.dumps(said))
        rows += [f"{rank},{n},timing,{plain_ms},{2.5 - n / 100}" for n in range(20)]
        rows += [f"{rank},{n},light,1.2," for n in range(20, 25)] + [
            f"{rank},{n},detailed,1.4," for n in range(25, 28)
        ]
    (folder / "steps.csv").write_text("\n".join(rows) + "\n")
    (folder / "recording.json").write_text(json.dumps({"exit_code": 0, "ranks": ranks, "warnings": []}))
    (folder / "environment.json").write_text(json.dumps({"torch": "2.9.1+cu128", "cpu_count": 16}))
    return folder


def pack(made: Path, to: Path) -> None:
    import gzip

    to.write_bytes(gzip.compress(made.read_bytes(), mtime=0))
    made.unlink()


def only(folder: Path) -> Capture:
    captures, _ = read_captures([folder])
    assert len(captures) == 1
    return captures[0]


def test_the_light_trace_decides_times_and_the_detailed_one_places(tmp_path: Path) -> None:
    folder = recording(tmp_path / "run")
    capture = only(folder)
    alone = tmp_path / "alone"
    alone.mkdir()
    pack(
        trace(reads_the_loss, detailed=False, steps=range(20, 25)).write(tmp_path / "t"),
        alone / "trace.json.gz",
    )
    light = only(alone)
    facts, bare = Facts(capture), Facts(light)
    assert facts[Steps].steps == bare[Steps].steps
    assert int(capture.run.own.sum()) == len(light.run)  # type: ignore[union-attr]
    syncs = facts[Syncs].rows.tolist()
    sites = [facts[CallSites].site(row) for row in syncs]
    assert syncs and {(s.file, s.line, s.function) for s in sites if s} == {("train.py", 41, "log")}
    inputs = facts[OperatorInputs]
    run = facts.run
    products = inputs.typical(run.named(lambda n: n == "aten::mm", Cat.CPU_OP))
    assert [i.shape(0) for i in inputs.of(products.tolist())] == [(64, 64)]
    result, lone = analyze(folder), analyze(alone)
    assert sums(result) == sums(lone)
    assert result.summary.step_us == lone.summary.step_us


def sums(result: Result) -> list[tuple[int, int, int]]:
    return [(r.window_ns, r.compute_ns, r.idle_ns.total()) for r in result.time_ledger]


def test_frames_lie_around_the_events_that_they_caused(tmp_path: Path) -> None:
    capture = only(recording(tmp_path))
    run = capture.run
    assert run is not None
    nesting = Facts(capture)[Nesting]
    for row in run.named(lambda n: n == "aten::item").tolist():
        above = [run.text(r) for r in nesting.ancestors(row)]
        assert [n for n in above if n.startswith("train.py")] == [
            "train.py(41): log", "train.py(20): train_step", "train.py(60): main",
        ]  # fmt: skip
    for row in run.named(lambda n: n == "aten::add_").tolist():
        above = [run.text(r) for r in nesting.ancestors(row)]
        assert [n for n in above if n.startswith("train.py")] == ["train.py(60): main"]


def test_a_fault_is_found_once_with_its_line_and_the_cost_of_the_light_trace(tmp_path: Path) -> None:
    result = analyze(recording(tmp_path))
    found = [f for f in result.findings if f.code == "TD201"]
    assert len(found) == 1
    assert (found[0].location.file, found[0].location.function) == ("train.py", "log")
    assert {f.input for f in result.findings} == {0}
    assert result.summary.step_us is not None
    for finding in result.findings:
        if finding.saving and finding.saving.time_us_per_step:
            assert finding.saving.time_us_per_step <= result.summary.step_us


def many_small(b: RunBuilder, step: int) -> None:
    """Small kernels, one after another: the host keeps up with them, unless its frames are recorded."""
    for _ in range(200):
        with frame(b, "train.py", 30, "block"), frame(b, "ops.py", 9, "add"), b.op("aten::add"):
            b.launch(9)


def test_what_only_the_profiler_makes_is_not_blamed_on_the_script(tmp_path: Path) -> None:
    """The detailed trace alone is bound by its launches."""
    folder = recording(tmp_path / "run", many_small)
    detailed = tmp_path / "detailed.json.gz"
    detailed.write_bytes((folder / capture_file(0, "detailed")).read_bytes())
    blamed = {f.code for f in analyze(detailed).findings}
    found = {f.code for f in analyze(folder).findings}
    assert "TD202" in blamed and "TD202" not in found


def test_files_and_roles(tmp_path: Path) -> None:
    folder = recording(tmp_path)
    result = analyze(folder)
    seen = [(i.path, i.kind, i.role, i.run_steps) for i in result.inputs]
    assert seen == [
        ("rank0.light.json.gz", "trace", "light", (20, 24)),
        ("rank0.detailed.json.gz", "trace", "detailed", (25, 27)),
    ]
    assert result.ignored == []
    assert {s.input for s in result.steps} == {0} and {r.input for r in result.time_ledger} == {0}


def test_ranks_stay_apart_and_are_one_job(tmp_path: Path) -> None:
    result = analyze(recording(tmp_path, ranks=2))
    assert [(i.rank, i.role) for i in result.inputs] == [
        (0, "light"), (0, "detailed"), (1, "light"), (1, "detailed"),
    ]  # fmt: skip
    found = [f for f in result.findings if f.code == "TD201"]
    assert len(found) == 1 and "also on rank 1" in found[0].message


def test_without_manifests_every_trace_speaks_for_itself(tmp_path: Path) -> None:
    folder = recording(tmp_path)
    for name in ("recording.json", rank_file(0)):
        (folder / name).unlink()
    captures, _ = read_captures([folder])
    assert [c.path for c in captures] == ["rank0.detailed.json.gz", "rank0.light.json.gz"]
    assert all(not c.further and not c.step_ms for c in captures)


@pytest.mark.parametrize("missing", ["light", "detailed"])
def test_a_recording_that_ended_early_is_read_as_far_as_it_came(tmp_path: Path, missing: str) -> None:
    folder = recording(tmp_path)
    (folder / f"rank0.{missing}.json.gz").unlink()
    result = analyze(folder)
    assert [i.role for i in result.inputs] == [{"light": "detailed", "detailed": "light"}[missing]]
    assert result.summary.plain_step_us == pytest.approx(1050)


def test_a_recording_without_captures_says_why(tmp_path: Path) -> None:
    said = ["light, detailed: not captured: too few steps"]
    (tmp_path / rank_file(0)).write_text(json.dumps({"rank": 0, "warnings": said}))
    with pytest.raises(
        NoCaptures, match=r"in the recording .*: light, detailed: not captured: too few steps"
    ):
        analyze(tmp_path)


def test_what_a_recording_says_of_itself_is_shown(tmp_path: Path) -> None:
    folder = recording(tmp_path, ranks=2)
    (folder / "recording.json").write_text(json.dumps({"warnings": ["rank 2 reported nothing"]}))
    said = json.loads((folder / rank_file(1)).read_text())
    (folder / rank_file(1)).write_text(json.dumps({**said, "warnings": ["steps vary"]}))
    result = analyze(folder)
    assert [i.warnings for i in result.inputs if i.role == "light"] == [
        ["rank 2 reported nothing"],
        ["steps vary"],
    ]


def test_steps_that_differ_get_no_frames_that_are_not_theirs(tmp_path: Path) -> None:
    """Every other step logs, and the detailed steps do not: the extra operators have the frames that stay open."""

    def at_times(b: RunBuilder, step: int) -> None:
        with frame(b, "train.py", 20, "train_step"):
            with b.op("aten::mm"):
                b.launch(400)
            with frame(b, "train.py", 33, "norm"), b.op("aten::norm"):
                b.launch(10)
            if 20 <= step < 25 and step % 2:
                b.item()
            with frame(b, "train.py", 50, "update"), b.op("aten::add_"):
                b.launch(10)

    capture = only(recording(tmp_path, at_times))
    run = capture.run
    assert run is not None
    nesting = Facts(capture)[Nesting]

    def frames(name: str) -> set[tuple[str, ...]]:
        rows = run.named(lambda n: n == name).tolist()
        return {
            tuple(t for r in nesting.ancestors(row) if (t := run.text(r)).startswith("train.py"))
            for row in rows
        }

    around = ("train.py(20): train_step", "train.py(60): main")
    assert frames("aten::item") == {around}
    assert frames("aten::norm") == {("train.py(33): norm", *around)}
    assert frames("aten::add_") == {("train.py(50): update", *around)}


def test_the_recorder_itself_is_no_part_of_the_program(tmp_path: Path) -> None:
    """Frames of its hooks lie around the optimizer's in the detailed trace."""

    def watched(b: RunBuilder, step: int) -> None:
        with frame(b, "trace_doctor/recording/agent/steps.py", 80, "watched"):
            b.wait(3000)
            with frame(b, "torch/optim/adamw.py", 200, "step"), b.op("aten::add_"):
                b.launch(10)
        b.sync()

    folder = recording(tmp_path, watched)
    run = only(folder).run
    assert run is not None
    frames = {run.text(r).split("(")[0] for r in run.named(lambda n: ".py(" in n, Cat.PYTHON).tolist()}
    assert frames == {"torch/optim/adamw.py", "train.py"}
    assert not any("trace_doctor/recording" in str(f) for f in analyze(folder).findings)
    (folder / capture_file(0, "light")).unlink()
    assert not any("trace_doctor/recording" in str(f) for f in analyze(folder).findings)


@pytest.mark.parametrize("in_both", [True, False])
def test_what_only_the_machine_held_up_is_not_blamed(tmp_path: Path, in_both: bool) -> None:
    """Three of five light steps stand still in a function; a fault of the script would show in the detailed ones too."""

    def saves(b: RunBuilder, step: int) -> None:
        reads_the_loss(b, step)
        with frame(b, "train.py", 70, "save"):
            b.wait(6000 if step % 2 == 0 or in_both else 10)
        with b.op("aten::zero_"):
            b.launch(5)

    def at_times(b: RunBuilder, step: int) -> None:
        saves(b, step if step < 25 else 1)

    folder = recording(tmp_path, at_times)
    assert ("TD203" in {f.code for f in analyze(folder).findings}) == in_both


def test_other_programs_lend_nothing(tmp_path: Path) -> None:
    folder = recording(tmp_path)

    def other(b: RunBuilder, step: int) -> None:
        for _ in range(9):
            with b.op("aten::conv2d"):
                b.launch(20)

    pack(trace(other, detailed=True).write(tmp_path / "other"), folder / capture_file(0, "detailed"))
    capture = only(folder)
    assert capture.run is not None and capture.run.own.all() and not capture.frames_from


def test_plain_steps_stand_beside_profiled_ones(tmp_path: Path) -> None:
    result = analyze(recording(tmp_path, plain_ms=1.25))
    assert result.summary.plain_step_us == pytest.approx(1250)
    plain = result.inputs[0].plain
    assert plain is not None and (plain.steps, plain.mad_us) == (20, 0)
    assert result.inputs[1].plain is None
    [cost] = [f for f in result.findings if f.code == "TD003"]
    assert cost.message.startswith("A step takes 1.2 ms, and 1.6 ms under the profiler (24% more)")
    assert [row[0] for row in cost.evidence[0].rows] == ["timing", "light", "detailed"]
    for page in ("text", "markdown", "html"):
        said = " ".join(render(result, page).split())
        assert "1.25 ms" in said and "under the profiler" in said, page


def test_what_the_profiler_costs_is_measured_not_estimated(tmp_path: Path) -> None:
    """A detailed trace by itself is told to have cost much; the recording it belongs to took that out."""
    folder = recording(tmp_path / "run", many_small, plain_ms=1.9)
    assert "TD003" not in {f.code for f in analyze(folder).findings}


def test_an_environment_of_the_recording_counts_for_all_its_files(tmp_path: Path) -> None:
    result = analyze(recording(tmp_path))
    assert {i.torch_version.min for i in result.inputs} == {"2.9.1"}


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


def test_peak_and_boundary_are_one_memory_story(tmp_path: Path) -> None:
    folder = recording(tmp_path)
    snapshots(folder)
    result = analyze(folder)
    assert [(i.role, i.run_steps) for i in result.inputs if i.kind == "snapshot"] == [
        ("boundary", (28, 30)), ("peak", (28, 30)),
    ]  # fmt: skip
    assert len(result.memory_ledger) == 1 and len(result.memory_timeline) == 1
    assert result.memory_ledger[0].peak_bytes == 100 << 20
    assert len({(f.code, f.fingerprint) for f in result.findings}) == len(result.findings)


def test_a_function_open_all_through_is_one_frame(tmp_path: Path) -> None:
    """Although some of its steps begin with operators that the detailed trace never shows."""

    def begins_otherwise(b: RunBuilder, step: int) -> None:
        if step in (21, 23):
            with b.op("aten::print"):
                b.wait(50)
        reads_the_loss(b, step)

    run = only(recording(tmp_path, begins_otherwise)).run
    assert run is not None
    [row] = run.named(lambda n: n == "train.py(60): main").tolist()
    marks = run.named(lambda n: n.startswith("ProfilerStep"))
    assert run.ts[row] == run.ts[marks].min() and run.end[row] >= run.end[marks].max()


def test_two_recordings_are_compared_by_their_plain_steps(tmp_path: Path) -> None:
    """Where both have them; of a trace alone there are profiled steps only."""
    before, after = (recording(tmp_path / n, plain_ms=ms) for n, ms in (("before", 1.25), ("after", 1.0)))
    step = diff(before, after).step_time
    assert step.before and step.after and step.before.plain and step.after.plain
    assert (step.verdict, step.change_us, step.before.steps) == ("faster", pytest.approx(-250), 20)
    for name in ("recording.json", rank_file(0), capture_file(0, "detailed")):
        (after / name).unlink()
    step = diff(before, after).step_time
    assert step.before and not step.before.plain and step.verdict == "within_noise"


def test_traces_and_snapshots_share_one_clock(tmp_path: Path) -> None:
    folder = recording(tmp_path)
    snapshots(folder, BASE_NS // 1000 + 2_500_000)
    seconds = {i.role: i.seconds or (-1.0, -1.0) for i in analyze(folder).inputs}
    assert seconds["light"] == (0, pytest.approx(0.008, abs=0.001))
    assert seconds["detailed"][0] == 0  # both builders start at the same moment
    assert seconds["peak"][0] == seconds["boundary"][0] == pytest.approx(2.499, abs=0.001)
    assert seconds["peak"][1] < seconds["boundary"][1] < 2.6
    snapshots(folder, 1_000_000)
    assert [i.seconds for i in analyze(folder).inputs] == [None] * 4


def test_where_the_light_trace_cannot_tell_the_detailed_one_is_asked(tmp_path: Path) -> None:
    """Two traces without a step in common: shapes cannot be lent, and the rule about them speaks from the other trace.
    Its time is told as a share of the light trace's step, and takes no part in the replay of that."""
    folder = recording(tmp_path / "run")
    case = next(c for c in UnalignedDims.INVALID if c.name == "as large as an aligned one, and slower")
    made = case.build()
    assert isinstance(made, RunBuilder)
    pack(made.write(tmp_path / "made"), folder / capture_file(0, "detailed"))
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "trace.json.gz").write_bytes((folder / capture_file(0, "detailed")).read_bytes())
    result, other = analyze(folder), analyze(alone)
    told, seen = ({f.fingerprint: f for f in r.findings if f.code == "TD302"} for r in (result, other))
    assert told and told.keys() == seen.keys()
    assert result.summary.step_us and other.summary.step_us
    pace = min(1, result.summary.step_us / other.summary.step_us)
    for key, found in told.items():
        assert found.input == 0 and found.message == seen[key].message
        mine, theirs = found.saving, seen[key].saving
        assert mine and theirs and mine.share_of_step == theirs.share_of_step
        assert mine.time_us_per_step == pytest.approx((theirs.time_us_per_step or 0) * pace)
        assert all(found.id not in w.fixes for w in result.what_if)
    assert {r.input for r in result.time_ledger} == {0}


def compiled(b: RunBuilder, step: int) -> None:
    """`forward` prints on line 17, and the graph breaks there."""
    b.wait(5)
    with b.region(0):
        b.wait(5)
        with frame(b, "train.py", 5, "forward"):
            with b.op("aten::mm"):
                b.launch(5)
            b.wait(50)
            with b.region(1):
                b.wait(5)
                with frame(b, "train.py", 17, "torch_dynamo_resume_in_forward_at_17"), b.op("aten::mm"):
                    b.launch(5)


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


def test_each_rank_quotes_its_own_compile_log(tmp_path: Path) -> None:
    """Logs are told apart by the process that wrote them; one of a process that was not recorded is nobody's."""
    folder = recording(tmp_path, compiled, ranks=2)
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


@pytest.mark.parametrize("sample", ["graph_break_item/cpu/fault", "straggler/cpu/healthy"])
def test_lent_frames_of_a_real_recording_are_those_of_the_detailed_trace(sample: str) -> None:
    """Every operator of a steady step stands in frames that the same operator has in the detailed trace."""
    captures, _ = read_captures([SAMPLES / sample])
    for capture in captures:
        assert capture.frames_from and capture.run is not None
        detailed = next(r for r in capture.further if isinstance(r, Run))
        known = stacks(detailed)
        lent = stacks(capture.run)
        assert lent.keys() <= known.keys()
        told = sum(lent[name] <= known[name] for name in lent)
        assert told == len(lent), {n: lent[n] - known[n] for n in lent if not lent[n] <= known[n]}
        assert sum(len(s) for of in lent.values() for s in of) > 100


def stacks(run: Run) -> dict[str, set[tuple[str, ...]]]:
    """The frames of the program around each operator of the main thread, in steady steps."""
    facts = Facts(Capture(run.rank, run))
    nesting, steps = facts[Nesting], facts[Steps].steady
    found: dict[str, set[tuple[str, ...]]] = {}
    rows = run.named(lambda n: n.startswith("aten::"), Cat.CPU_OP)
    for row in rows[run.thread[rows] == facts[Threads].main].tolist():
        if any(s.start <= run.ts[row] < s.end for s in steps):
            above = [run.text(r) for r in nesting.ancestors(row) if run.cat[r] == Cat.PYTHON]
            found.setdefault(run.text(row), set()).add(tuple(n for n in above if "trace_doctor/" not in n))
    return found


def test_a_real_recording_quotes_why_its_graph_breaks() -> None:
    [found] = [f for f in analyze(SAMPLES / "graph_break_item/cpu/fault").findings if f.code == "TD501"]
    assert "Unsupported Tensor.item() call" in found.message
    assert (found.location.file, found.location.line) == ("fault.py", 22)
