"""The memory rules on real snapshots, against the labels kept with them (drafted from raw events, checked here)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from trace_doctor.capture import Capture
from trace_doctor.config import defaults
from trace_doctor.engine import diagnose
from trace_doctor.loaders.snapshot.unpickle import load_snapshot
from trace_doctor.model import Result
from trace_doctor.registry import resolve

CODES = ("TD401", "TD402", "TD403", "TD404", "TD405", "TD406", "TD407", "TD409", "TD410", "TD411")

DISAGREE: dict[tuple[str, str], str] = {}
"""(file, code) -> why the label is wrong. Empty: all labels of these rules hold."""


@cache
def result(path: Path) -> Result:
    rules = [rule for code in CODES for rule in resolve(code)]
    return diagnose([Capture(rank=0, snapshot=load_snapshot(path, path.name))], rules, defaults())


@pytest.mark.captures
def test_labels_hold(snapshot_file: Path, captures_dir: Path) -> None:
    folder = captures_dir / "snapshots"
    name = snapshot_file.relative_to(folder).as_posix()
    label = json.loads((folder / "LABELS.json").read_text()).get(f"snap:{name}")
    if label is None:
        pytest.skip("no label for this file")
    fired = {f.code for f in result(snapshot_file).findings if f.severity != "info"}
    wanted = {c for c in label["must"] if c in CODES and (name, c) not in DISAGREE}
    unwanted = {c for c in label["must_not"] if c in CODES and (name, c) not in DISAGREE}
    assert wanted <= fired, label["why"]
    assert not fired & unwanted, label["why"]


@pytest.mark.captures
def test_no_rule_ends_in_an_error(snapshot_file: Path) -> None:
    assert [o for o in result(snapshot_file).outcomes if o.outcome == "error"] == []


@pytest.mark.captures
def test_files_without_history_are_skipped_not_passed(snapshot_file: Path) -> None:
    if load_snapshot(snapshot_file, "").has_history:
        pytest.skip("this file has a history")
    assert {o.outcome for o in result(snapshot_file).outcomes} == {"skipped"}


@pytest.mark.captures
def test_gradients_retained_through_a_forward(captures_dir: Path) -> None:
    path = captures_dir / "snapshots/notHanmin_assignment2-systems/33be88e6_memory_snapshot.pickle"
    (finding,) = [f for f in result(path).findings if f.code == "TD404"]
    assert finding.saving is not None
    assert finding.saving.bytes is not None
    assert finding.saving.bytes >> 20 == 3633
    assert finding.location.file is not None
    assert finding.location.file.endswith("benchmarking_script.py")
    assert finding.fixes[0].params == {"mode": "move"}


@pytest.mark.captures
@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("cornell-sysphotonics_ccl-bench/7e29dbee_iteration_0_exit_rank0_memory_snapshot.pickle", 16),
        ("cranberrii_ftcourse/memory_snapshot.pickle", 22),
        ("Wedsonlin_assignment2-systems/results_medium_1024_training_memory_snapshot.pickle", 24),
        (
            "NiuHuangxiaozi_assignment2-systems/profile_memory_forward_and_backward_memory_snapshot_200.pickle",
            4,
        ),
    ],
)
def test_the_layers_of_a_model_are_counted(name: str, layers: int, captures_dir: Path) -> None:
    """As the models have them: Llama 3 1B, TinyLlama, GPT-2 medium and one of four blocks."""
    (finding,) = [f for f in result(captures_dir / "snapshots" / name).findings if f.code == "TD406"]
    assert f"{layers} layers save" in finding.message
    assert finding.saving is not None
    assert finding.saving.share_of_peak is not None
    assert 0.2 < finding.saving.share_of_peak < 0.9


@pytest.mark.captures
def test_optimizer_state_is_twice_the_parameters_of_adamw(captures_dir: Path) -> None:
    path = captures_dir / "snapshots/notHanmin_assignment2-systems/33be88e6_memory_snapshot.pickle"
    (finding,) = [f for f in result(path).findings if f.code == "TD407"]
    assert "7.22 GiB" in finding.message
    assert finding.severity == "info"  # nothing says how large the device is


@pytest.mark.captures
@pytest.mark.parametrize(("name", "mib"), [("04d383cd", 2000), ("1f2f5480", 476)])
def test_logits_that_stay_through_the_next_forward(name: str, mib: int, captures_dir: Path) -> None:
    """`outputs = model(...)` in an evaluation loop: the block that the next assignment frees."""
    found = result(captures_dir / "snapshots/Maphsge4_select_n" / f"{name}_snapshot.pickle").findings
    (finding,) = [f for f in found if f.code == "TD411"]
    assert finding.saving is not None
    assert finding.saving.bytes is not None
    assert finding.saving.bytes >> 20 <= mib
    assert (finding.location.line, finding.location.function) == (63, "validate")


@pytest.mark.captures
def test_an_out_of_memory_finding_refers_to_what_explains_it(captures_dir: Path) -> None:
    folder = captures_dir / "snapshots/cornell-sysphotonics_ccl-bench"
    found = {f.code: f for f in result(sorted(folder.glob("*.pickle"))[0]).findings}
    assert set(found["TD410"].refers_to) == {found["TD402"].id, found["TD406"].id}
    titles = {x.title for x in found["TD410"].fixes}
    assert titles >= {x.title for code in ("TD402", "TD406") for x in found[code].fixes}
    assert len(titles) == len(found["TD410"].fixes)


@pytest.mark.captures
def test_an_out_of_memory_finding_names_request_free_and_holders(captures_dir: Path) -> None:
    folder = captures_dir / "snapshots/cornell-sysphotonics_ccl-bench"
    for path in sorted(folder.glob("*.pickle")):
        (finding,) = [f for f in result(path).findings if f.code == "TD410"]
        for part in ("4,008 MiB requested", "cross_entropy_loss", "3,842 MiB free", "112 MiB", "activations"):
            assert part in finding.message
        assert finding.severity == "critical"
        assert any(t.title == "Largest allocations" for t in finding.evidence)
