"""The sample captures: each planted fault is found where it stands, and its healthy twin is left in peace."""

from __future__ import annotations

import functools
import gzip
import json
import pickle
import re
import runpy
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from trace_doctor import analyze
from trace_doctor.config import defaults
from trace_doctor.model import Finding, Result

SAMPLES = Path(__file__).resolve().parent.parent / "sample_traces"
SCENARIOS = sorted(p.parent.name for p in SAMPLES.glob("*/expected.toml"))
CAPTURES = sorted({p.parent.relative_to(SAMPLES).as_posix() for p in SAMPLES.glob("*/*/*/*.gz")})
TWINS = [c for c in CAPTURES if c.endswith("/healthy")]
SEVERITIES = ("info", "warning", "critical")


@functools.cache
def expected(scenario: str) -> dict[str, Any]:
    return tomllib.loads((SAMPLES / scenario / "expected.toml").read_text(encoding="utf-8"))


FAULTS = [c for c in CAPTURES if c.endswith("/fault")]


@functools.cache
def result(capture: str) -> Result:
    scenario, _, twin = capture.split("/")
    config = defaults()
    return analyze(SAMPLES / capture, source=SAMPLES / scenario / f"{twin}.py", config=config)


def wanted_lines(scenario: str) -> list[int]:
    """For each expected finding the line marked `# FAULT`, or the first one with the text that it is to name."""
    script = (SAMPLES / scenario / "fault.py").read_text(encoding="utf-8").splitlines()
    marked = [i for i, line in enumerate(script, 1) if "# FAULT" in line]
    named = [f.get("names") for f in expected(scenario)["fault"]]
    return [
        mark if text is None else next(i for i, line in enumerate(script, 1) if text in line)
        for mark, text in zip(marked, named, strict=True)
    ]


def lines_named(finding: Finding) -> set[int | None]:
    """Where a finding points: its own line, or the line that its fix edits."""
    targets = {f.target.line for f in finding.fixes if f.target is not None and f.codemod is not None}
    return {finding.location.line, *targets}


@pytest.mark.parametrize("capture", FAULTS)
def test_the_planted_fault_is_found_where_it_stands(capture: str) -> None:
    scenario = capture.split("/")[0]
    wanted = expected(scenario)["fault"]
    codes = {w["code"] for w in wanted}
    found = [f for f in result(capture).findings if f.severity != "info" or f.code in codes]
    also = {c for w in wanted for c in w.get("also", [])}  # what comes of the same fault, and refers to it
    assert also <= {f.code for f in found}
    found = [f for f in found if f.code not in also]
    assert sorted(f.code for f in found) == sorted(w["code"] for w in wanted), [f.message for f in found]
    for want, line in zip(wanted, wanted_lines(scenario), strict=True):
        here = [f for f in found if f.code == want["code"]]
        if want.get("located", True):
            here = [f for f in here if line in lines_named(f)]
            assert here, (
                f"no {want['code']} names line {line}: {[(f.message, lines_named(f)) for f in found]}"
            )
            assert here[0].location.file in (None, "fault.py")
        assert SEVERITIES.index(here[0].severity) >= SEVERITIES.index(want["severity"]), here[0].message


@pytest.mark.parametrize("capture", [c for c in FAULTS if "fix" in expected(c.split("/")[0])["fault"][0]])
def test_the_fix_edits_the_marked_line_of_the_script(capture: str) -> None:
    scenario = capture.split("/")[0]
    for want, line in zip(expected(scenario)["fault"], wanted_lines(scenario), strict=True):
        fixes = [x for f in result(capture).findings if f.code == want["code"] for x in f.fixes]
        at_line = [x for x in fixes if x.codemod == want["fix"] and x.target and x.target.line == line]
        assert at_line, f"no {want['fix']} for line {line}: {[(x.codemod, x.target) for x in fixes]}"
        assert at_line[0].diff, f"{want['fix']} gave no diff"


@pytest.mark.parametrize("capture", TWINS)
def test_the_healthy_twin_raises_no_alarm(capture: str) -> None:
    assert not [f.message for f in result(capture).findings if f.severity != "info"]
    assert not [o.code for o in result(capture).outcomes if o.outcome == "error"]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_scenario_has_both_twins_captured(scenario: str) -> None:
    """What the CPU can show is real; what needs a GPU is simulated until a real capture lies beside it."""
    machine = "cpu" if "cpu" in expected(scenario)["machines"] else "simulated"
    for twin in ("fault", "healthy"):
        assert list((SAMPLES / scenario / machine / twin).glob("*.gz"))


def test_captures_are_small() -> None:
    sizes = [p.stat().st_size for p in SAMPLES.rglob("*") if p.is_file()]
    assert max(sizes) <= 2 << 20
    assert sum(sizes) <= 25 << 20


@pytest.mark.parametrize("capture", [c for c in CAPTURES if "/simulated/" not in c])
def test_real_captures_name_their_software_but_not_the_machine(capture: str) -> None:
    environment = json.loads((SAMPLES / capture / "environment.json").read_text(encoding="utf-8"))
    assert {"torch", "python", "device", "cpu_count"} <= environment.keys()
    for file in (p for p in (SAMPLES / capture).rglob("*") if p.is_file()):
        content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
        assert not re.findall(rb"/(?:home|root|tmp|usr|opt|work|mnt|var|Users)/[^\s\"]*", content)
        assert b"host_name" not in content and b"username" not in content


def test_simulated_captures_are_what_the_simulation_gives(tmp_path: Path) -> None:
    simulate = SimpleNamespace(**runpy.run_path(str(SAMPLES / "simulate")))
    for scenario in simulate.SCENARIOS:
        for twin in ("fault", "healthy"):
            made = simulate.write(scenario, twin, tmp_path)
            kept = SAMPLES / scenario.__name__ / "simulated" / twin / made.name
            assert _content(made) == _content(kept), (
                f"run sample_traces/simulate: {kept.relative_to(SAMPLES)}"
            )


def _content(packed: Path) -> Any:
    plain = gzip.decompress(packed.read_bytes())
    return json.loads(plain) if ".json" in packed.name else pickle.loads(plain)
