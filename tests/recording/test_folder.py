"""The folder of a recording is read with bounds and without trust: what is missing or odd is unknown, never an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trace_doctor.recording import folder
from trace_doctor.recording.launch import Recorded
from trace_doctor.recording.options import capture_file, rank_file, rank_steps_file
from trace_doctor.reporters.recording import render

STEPS = """rank,step,phase,milliseconds,loss
0,0,warmup,90.5,2.302585092994046
0,1,timing,10.25,
0,2,timing,10.5,1.5
1,1,timing,11.0,
0,3,light,12.0,1.25
"""


def rank_record(**more: object) -> str:
    return json.dumps(
        {
            "rank": 0,
            "pid": 4711,
            "world_size": 2,
            "found_steps_by": "optimizer",
            "accumulation": 4,
            "ended": "enough",
            "phases": [
                {"name": "timing", "first_step": 1, "last_step": 2, "seconds": 0.02, "why_ended": "enough"},
                {
                    "name": "light",
                    "first_step": 3,
                    "last_step": 3,
                    "overhead": {"per_step_us": 1500, "share": 0.15},
                },
            ],
            "warnings": ["steps vary"],
            **more,
        }
    )


def test_what_a_recording_says(tmp_path: Path) -> None:
    (tmp_path / "recording.json").write_text(
        '{"exit_code": 0, "warnings": ["rank 1 reported nothing"], "later": {}}'
    )
    (tmp_path / rank_file(0)).write_text(rank_record(unheard_of=[1]))
    (tmp_path / "steps.csv").write_text(STEPS)
    read = folder.read(tmp_path)
    assert read is not None
    assert (read.exit_code, read.warnings) == (0, ("rank 1 reported nothing",))
    mine = read.ranks[0]
    assert (mine.pid, mine.world_size, mine.found_steps_by, mine.accumulation) == (4711, 2, "optimizer", 4)
    light = mine.phase("light")
    assert light is not None and (light.first_step, light.last_step, light.overhead) == (3, 3, 0.15)
    assert read.timed(0) == (10.25, 10.5) and read.timed(1) == (11.0,) and read.timed(7) == ()
    assert [s.loss for s in read.steps[0]] == [2.302585092994046, None, 1.5, 1.25]


WORK = {
    "steps": [30, 60],
    "every": 30.0,
    "milliseconds": 2810.0,
    "step_ms": 177.0,
    "share": 0.35,
    "places": [{"file": "main.py", "function": "<module>", "line": 228, "calls": "evaluate", "share": 1.0}],
}


def test_work_between_steps_is_told_where_the_recording_has_it(tmp_path: Path) -> None:
    (tmp_path / rank_file(0)).write_text(rank_record(periodic=WORK))
    recorded = Recorded(tmp_path, 0, True, 1.0, folder.read(tmp_path), ())
    said = " ".join(" ".join(render(recorded, ["python", "main.py"])).split())
    assert "between 2.81 s every 30 steps, 35% of the run: mostly evaluate() (main.py:228)" in said


@pytest.mark.parametrize(
    "odd",
    [
        {"steps": [30]}, {"steps": ["30", 60]}, {"every": 0}, {"every": "often"}, {"share": 1.5}, {"milliseconds": -1},
        {"places": []}, {"places": ["main.py"]}, {"step_ms": None},
    ],
)  # fmt: skip
def test_work_between_steps_that_cannot_be_is_none(tmp_path: Path, odd: dict[str, object]) -> None:
    (tmp_path / rank_file(0)).write_text(rank_record(periodic=WORK | odd))
    read = folder.read(tmp_path)
    assert read is not None and read.ranks[0].periodic is None


@pytest.mark.parametrize("cut", ["1,5,tim", "1,5,timing,4", "1,5,timing,40.25,1.2"])
def test_a_launcher_that_died_left_what_the_ranks_wrote(tmp_path: Path, cut: str) -> None:
    """The last row may be cut where it still looks like one."""
    (tmp_path / rank_file(1)).write_text("{")
    (tmp_path / rank_steps_file(1)).write_text("rank,step,phase,milliseconds,loss\n1,4,timing,3.5,\n" + cut)
    read = folder.read(tmp_path)
    assert read is not None and list(read.ranks) == [1] and read.ranks[1].pid is None
    assert read.timed(1) == (3.5,)


@pytest.mark.parametrize(
    "text",
    [
        "", "[]", "null", '{"phases": 3, "pid": "x", "warnings": "no"}', '{"phases": [1, {"name": 5}]}', "\xff\x00",
        "[" * 100_000, '{"pid": true, "world_size": 1e999, "warnings": [[], "fine"]}', '{"pid": 1%s}' % ("0" * 5000),
    ],
)  # fmt: skip
def test_a_manifest_may_hold_anything(tmp_path: Path, text: str) -> None:
    (tmp_path / "recording.json").write_text(text, encoding="latin-1")
    (tmp_path / rank_file(0)).write_text(text, encoding="latin-1")
    read = folder.read(tmp_path)
    assert read is not None and read.exit_code is None
    assert read.ranks[0].pid is None and all(not p.name for p in read.ranks[0].phases)


@pytest.mark.parametrize(
    "row",
    [
        "0,1,timing,nan,",
        "0,1,timing,inf,",
        "0,1,timing,-3,",
        "0,1,timing,1e-300,",
        "0,1,timing,1e300,",
        "x,1,timing,3,",
        "0,,timing,3,",
        "-1,1,timing,3,",
        "0",
    ],
)
def test_rows_that_cannot_be_are_left_out(tmp_path: Path, row: str) -> None:
    (tmp_path / "recording.json").write_text("{}")
    (tmp_path / "steps.csv").write_text(f"rank,step,phase,milliseconds,loss\n{row}\n0,2,timing,4.5,\n")
    read = folder.read(tmp_path)
    assert read is not None and read.timed(0) == (4.5,)


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("waited_for_cpu", [-0.1, 1.5, 1e9]),
        ("peak_allocated_bytes", [-1, 0.5]),
        ("world_size", [0, -2]),
        ("accumulation", [0, -4]),
    ],
)
def test_figures_that_cannot_be_are_not_believed(tmp_path: Path, field: str, values: list[float]) -> None:
    for value in values:
        (tmp_path / rank_file(0)).write_text(rank_record(**{field: value}))
        (tmp_path / "recording.json").write_text(json.dumps({"waited_for_cpu": {"0": value}}))
        read = folder.read(tmp_path)
        assert read is not None and getattr(read.ranks[0], field) is None


@pytest.mark.parametrize("field", ["seconds", "cpu_seconds"])
def test_no_phase_takes_less_than_no_time(tmp_path: Path, field: str) -> None:
    (tmp_path / rank_file(0)).write_text(rank_record(phases=[{"name": "timing", field: -1.0}]))
    read = folder.read(tmp_path)
    assert read is not None and getattr(read.ranks[0].phases[0], field) is None


def test_large_files_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "recording.json").write_text('{"exit_code": 3, "padding": "%s"}' % ("x" * (2 << 20)))
    read = folder.read(tmp_path)
    assert read is not None and read.exit_code is None


def test_a_folder_without_manifests_is_no_recording(tmp_path: Path) -> None:
    (tmp_path / capture_file(0, "light")).write_bytes(b"")
    (tmp_path / "steps.csv").write_text(STEPS)
    assert folder.read(tmp_path) is None
    assert folder.read(tmp_path / "absent") is None


def test_names_of_captures_and_companions() -> None:
    assert folder.role_of("rank12.boundary.pickle") == (12, "boundary")
    assert folder.role_of("rank0.light.json.gz") == folder.role_of("rank0.light.json") == (0, "light")
    assert folder.role_of("rank3.oom.pickle.gz") == (3, "oom")
    for other in ("rank0.json.gz", "rank0.light.pickle", "rank0.peak.json.gz", "xrank0.light.json.gz", "rank0.light.json.gz.tmp", "rank00.light.json.gz"):  # fmt: skip
        assert folder.role_of(other) is None, other
    for name in ("recording.json", "rank3.recording.json", "rank3.steps.csv", "plan.json", "options.json", "environment.json"):  # fmt: skip
        assert folder.is_companion(name), name
    assert not folder.is_companion("rank0.light.json.gz") and not folder.is_companion("trace.json")


def test_all_files_that_a_rank_has_loaded_are_read(tmp_path: Path) -> None:
    """The script itself may be the last of them."""
    files = [f"/project/module_{n:04}.py" for n in range(700)]
    (tmp_path / rank_file(0)).write_text(rank_record(imports=files))
    read = folder.read(tmp_path)
    assert read is not None and read.ranks[0].imports == tuple(files)
