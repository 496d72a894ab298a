"""Whether the same script captured again gets the same verdict.

    python bench/accuracy/stability.py dataloader_starvation graph_break_print [--runs 5]

Records `fault.py` and `healthy.py` of each sample scenario anew on this machine (needs torch), in processes of their own,
one at a time and with one torch thread, and prints a Markdown row per recording. Nothing in `sample_traces` is changed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

from trace_doctor import analyze
from trace_doctor.model import Finding

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"


def main() -> None:
    options = _options()
    print(f"Load of the machine before: {os.getloadavg()[0]:.1f} on {len(os.sched_getaffinity(0))} cores.\n")
    print("| script | run | step, ms | verdict: above info | at info |")
    print("|---|--:|--:|---|---|")
    for scenario in options.scenarios:
        for twin in ("fault", "healthy"):
            verdicts = {_row(scenario, twin, run) for run in range(1, options.runs + 1)}
            same = "the same" if len(verdicts) == 1 else f"{len(verdicts)} different"
            print(f"| **{scenario}/{twin}.py** | all | | **{same}** | |", flush=True)


def _row(scenario: str, twin: str, run: int) -> str:
    """Records once, prints the row, and gives the verdict: what is found above info and where."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for source in (SAMPLES / scenario).glob("*.py"):
            shutil.copy(source, folder)
        _record(folder, scenario, twin)
        result = analyze(folder / "out", source=folder / f"{twin}.py")
    verdict = ", ".join(sorted(_said(f) for f in result.findings if f.severity != "info")) or "nothing"
    notes = ", ".join(sorted(_said(f) for f in result.findings if f.severity == "info"))
    step = (result.summary.step_us or 0) / 1e3
    print(f"| {scenario}/{twin}.py | {run} | {step:.1f} | {verdict} | {notes} |", flush=True)
    return verdict


def _said(finding: Finding) -> str:
    return f"{finding.code} line {finding.location.line}" if finding.location.line else finding.code


def _record(folder: Path, scenario: str, twin: str) -> None:
    wanted = tomllib.loads((SAMPLES / scenario / "expected.toml").read_text(encoding="utf-8"))
    capture = wanted.get("capture", {})
    command = [sys.executable, str(SAMPLES / "record.py"), f"{twin}.py", "--out", "out"]
    if "active" in capture:
        command += ["--active", str(capture["active"])]
    if capture.get("stacks") is False:
        command.append("--no-stacks")
    caches = {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache"), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **caches}
    done = subprocess.run(
        command, check=False, cwd=folder, env=environment, capture_output=True, text=True, encoding="utf-8"
    )
    if done.returncode:
        sys.exit(f"{scenario}/{twin}.py failed:\n{done.stderr}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("scenarios", nargs="+", help="folders of sample_traces that run on one process")
    parser.add_argument("--runs", type=int, default=5)
    return parser.parse_args()


if __name__ == "__main__":
    main()
