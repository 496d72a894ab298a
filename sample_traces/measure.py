"""Proof by running: patches every faulty script with its own fix, runs both, and sets promised beside measured.

    python sample_traces/measure.py [--runs 3] [SCENARIO ...]     measure what this machine can show, then write the table
    python sample_traces/measure.py --twins                       only compare the captures that are committed
    python sample_traces/measure.py --table                       only write MEASURED.md again from the data

For each scenario: record `fault.py`, let `trace-doctor fix` patch a copy, record that, and let `trace-doctor verify`
compare. Then both run without the profiler, in turn, so that what else the machine does meets both alike: step times,
and losses to the last bit. Without a GPU the scenarios that need one are patched from their simulated captures, and only
their losses are compared. `--twins` compares the committed recordings of `fault.py` and of `healthy.py`, its twin mended
by hand, without running anything. Data goes to `measured/`, the table to `MEASURED.md`.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).resolve().parent
DATA = HERE / "measured"
TABLE = HERE / "MEASURED.md"
TOLERANCE = 0.05
"""relative difference of a loss that a fix called unsafe may make"""
STEADY = 3
"""steps at the start of a plain run that are not timed: they compile, or start worker processes"""

PLAIN = """\
import json, sys
sys.path[:0] = ["", {here!r}]
import record
clock = record.Clock()
module = record.load(sys.argv[1])
losses = module.train(clock)
ends = clock.ends
print(json.dumps({{"losses": [x.hex() for x in losses], "ms": [(b - a) * 1e3 for a, b in zip(ends, ends[1:])]}}))
"""
MAIN = "from trace_doctor.cli import main; main()"


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("scenarios", nargs="*")
    arguments.add_argument("--runs", type=int, default=3, help="recordings and plain runs of each script")
    arguments.add_argument("--table", action="store_true", help="measure nothing")
    arguments.add_argument("--twins", action="store_true", help="run nothing: compare the committed captures")
    given = arguments.parse_args()
    if given.twins:
        twins()
    elif not given.table:
        measure(given.scenarios, given.runs)
    TABLE.write_text(table(), encoding="utf-8")
    print(f"written: {TABLE.relative_to(HERE.parent)}")


def scenarios() -> dict[str, dict[str, Any]]:
    """Those whose fault has a fix that edits the script."""
    found = {p.parent.name: tomllib.loads(p.read_text(encoding="utf-8")) for p in sorted(HERE.glob("*/expected.toml"))}
    return {name: e for name, e in found.items() if e["fault"] and all("fix" in f for f in e["fault"])}


# -- measuring ------------------------------------------------------------------------------------------------------


def measure(wanted: list[str], runs: int) -> None:
    import torch

    machine = "gpu" if torch.cuda.is_available() else "cpu"
    path = DATA / f"{machine}.json"
    data = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {"scenarios": {}}
    data["machine"] = {
        "device": torch.cuda.get_device_name() if machine == "gpu" else f"CPU, {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }
    for name, expected in scenarios().items():
        if wanted and name not in wanted:
            continue
        try:
            with tempfile.TemporaryDirectory() as scratch:
                data["scenarios"][name] = scenario(name, expected, machine, runs, Path(scratch))
        except NoPatch as none:
            print(f"{name}: {none}; its row stays as it was", flush=True)
            continue
        DATA.mkdir(exist_ok=True)
        path.write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(name, json.dumps({k: v for k, v in data["scenarios"][name].items() if k != "plain_ms"}), flush=True)


class NoPatch(Exception):
    """The recording of the faulty script shows no fault that has an edit: on a busy machine, steps are no longer alike."""


def scenario(name: str, expected: dict[str, Any], machine: str, runs: int, scratch: Path) -> dict[str, Any]:
    """All that one scenario shows on this machine."""
    folders = {side: scratch / side for side in ("before", "after")}
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",
        "TORCHINDUCTOR_CACHE_DIR": str(scratch / "torchinductor_user"),
    }
    for folder in folders.values():
        folder.mkdir()
        shutil.copy(HERE / name / "fault.py", folder)
    live = machine in expected["machines"]
    busy = [os.getloadavg()[0]]
    if live:
        for n in range(runs):
            record(folders["before"], scratch / "captures" / "before" / str(n), expected, environment)
    captures = scratch / "captures" / "before" / "0" if live else HERE / name / "simulated" / "fault"
    codes = sorted({f["code"] for f in expected["fault"]})
    found = {"fixes": patch(captures, folders["after"], codes)}
    if live:
        for n in range(runs):
            record(folders["after"], scratch / "captures" / "after" / str(n), expected, environment)
        found |= verified(scratch / "captures" / "before", scratch / "captures" / "after", codes)
    plain = {side: [] for side in folders}
    for n in range(runs if live else 1):
        for side in ("before", "after") if n % 2 == 0 else ("after", "before"):
            plain[side].append(run_plain(folders[side], environment))
            busy.append(os.getloadavg()[0])
    found |= losses(plain)
    if live:
        found["plain_ms"] = {side: [median(r["ms"][STEADY:]) for r in ran] for side, ran in plain.items()}
    return {**found, "machine_load": round(max(busy), 1), "runs": runs if live else 0}


def twins() -> None:
    """The committed recordings of both twins: what was promised and what the mended one shows."""
    found = {}
    for name, expected in scenarios().items():
        captures = HERE / name / "cpu"
        if not captures.is_dir():
            continue
        plain = {side: steady(captures / twin / "steps.csv") for side, twin in (("before", "fault"), ("after", "healthy"))}
        said = verified(captures / "fault", captures / "healthy", sorted({f["code"] for f in expected["fault"]}))
        found[name] = {**said, "plain_ms": {side: [ms] for side, ms in plain.items()}}
    first = next(iter(found))
    environment = json.loads((HERE / first / "cpu" / "fault" / "environment.json").read_text(encoding="utf-8"))
    DATA.mkdir(exist_ok=True)
    data = {"machine": environment, "scenarios": found}
    (DATA / "twins.json").write_text(json.dumps(data, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def steady(path: Path) -> float:
    """Median milliseconds of the steps that were timed without the profiler; without phases, of those after the first ones."""
    with path.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    timed = [row for row in rows if row["phase"] == "timing"] if "phase" in rows[0] else rows[STEADY:]
    return median(float(row["milliseconds"]) for row in timed)


def command(*arguments: str | Path, cwd: Path, environment: dict[str, str] | None = None, codes: tuple[int, ...] = (0,)) -> str:
    done = subprocess.run([sys.executable, *map(str, arguments)], cwd=cwd, env=environment, capture_output=True, text=True)
    if done.returncode not in codes:
        sys.exit(f"{' '.join(map(str, arguments))} in {cwd}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def record(folder: Path, out: Path, expected: dict[str, Any], environment: dict[str, str]) -> None:
    options = expected.get("capture", {})
    extra = ["--active", str(options["active"])] if "active" in options else []
    extra += ["--no-stacks"] if options.get("stacks") is False else []
    command(HERE / "record.py", "fault.py", "--out", out, *extra, cwd=folder, environment=environment)


def patch(captures: Path, folder: Path, codes: list[str]) -> list[str]:
    """Applies what `trace-doctor fix` writes for these findings; returns its safety and name for each fix."""
    select = [word for code in codes for word in ("--select", code)]
    text = command("-c", MAIN, "fix", captures, "--source", folder, "-q", *select, cwd=folder)
    if "diff --git" not in text:
        raise NoPatch(f"the recording shows no {' or '.join(codes)} with an edit")
    (folder / "fix.patch").write_text(text, encoding="utf-8")
    subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
    subprocess.run(["git", "apply", "fix.patch"], cwd=folder, check=True)
    return [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")]


def verified(before: Path, after: Path, codes: list[str]) -> dict[str, Any]:
    """What `trace-doctor verify` says of all recordings together."""
    select = [word for code in codes for word in ("--select", code)]
    options = ["-o", "json", "-q", *select]
    text = command("-c", MAIN, "verify", before, after, *options, cwd=before, codes=(0, 1, 3))
    said = json.loads(text)
    return {
        "fates": sorted({f"{f['code']} {f['fate']}" for f in said["findings"]}),
        "promise": {k: said["promise"][k] for k in ("time_us_per_step", "measured_us", "basis", "bytes", "measured_bytes")},
        "step_time": {
            "verdict": said["step_time"]["verdict"],
            "noise_us": said["step_time"]["noise_us"],
            **{s: (said["step_time"][s] or {}).get("median_us") for s in ("before", "after")},
        },
        "warnings": said["warnings"],
    }


def run_plain(folder: Path, environment: dict[str, str]) -> dict[str, list[Any]]:
    text = command("-c", PLAIN.format(here=str(HERE)), "fault.py", cwd=folder, environment=environment)
    ran = json.loads(text.splitlines()[-1])
    return {"ms": ran["ms"], "losses": [float.fromhex(x) for x in ran["losses"]]}


def losses(plain: dict[str, list[dict[str, list[Any]]]]) -> dict[str, Any]:
    """Whether the patched script computes the same, against how far two runs of one script differ."""
    before, after = (plain[side][0]["losses"] for side in ("before", "after"))
    repeated = all(r["losses"] == ran[0]["losses"] for ran in plain.values() for r in ran)
    worst = max((abs(a - b) / max(abs(a), 1e-12) for a, b in zip(before, after)), default=0.0)
    last = abs(before[-1] - after[-1]) / max(abs(before[-1]), 1e-12)
    return {"losses_same": before == after, "losses_worst": worst, "losses_last": last, "losses_repeat": repeated}


# -- the table ------------------------------------------------------------------------------------------------------


def table() -> str:
    """MEASURED.md from the data files."""
    known = {p.stem: json.loads(p.read_text(encoding="utf-8")) for p in sorted(DATA.glob("*.json"))}
    lines = [
        "# Predicted and measured",
        "",
        "Every faulty script of this folder, patched by `trace-doctor fix` and run again. Written by",
        "",
        "```",
        "python sample_traces/measure.py",
        "```",
        "",
        "*Predicted* is what the capture of the faulty script says, an upper bound. *With the profiler* is what `trace-doctor verify` "
        "measured between recordings of both scripts. *Without the profiler* is the median step of interleaved runs. Ranges are over "
        "the runs. *Losses*: the patched script against the faulty one, all steps. A fix is safe only if they are bitwise "
        f"identical, and an unsafe one has to end within {TOLERANCE:.0%}.",
    ]
    for machine in ("cpu", "gpu"):
        lines += ["", f"## {machine.upper()}", ""]
        if machine not in known:
            lines += ["not measured: no machine with a GPU was available."]
            continue
        lines += _machine(known[machine])
    if "twins" in known:
        lines += _twins(known["twins"])
    return "\n".join(lines) + "\n"


def _twins(data: dict[str, Any]) -> list[str]:
    about = data["machine"]
    lines = [
        "",
        "## The twins",
        "",
        "The committed recordings of `fault.py` and of `healthy.py`, which is fixed manually and not by the patch, compared by",
        "",
        "```",
        "python sample_traces/measure.py --twins",
        "```",
        "",
        f"Recorded on a quiet machine: {about['device']}, {about['cpu_count']} cores; PyTorch {about['torch']}, "
        f"Python {about['python']}. Times without the profiler are of one run each (`steps.csv`).",
        "",
        "| scenario | finding after | predicted | with the profiler | without the profiler |",
        "| --- | --- | --- | --- | --- |",
    ]
    return [*lines, *(f"| `{name}` | {' | '.join(_compared(row))} |" for name, row in sorted(data["scenarios"].items()))]


def _machine(data: dict[str, Any]) -> list[str]:
    about = data["machine"]
    lines = [f"{about['device']}, {about['cores']} cores; PyTorch {about['torch']}, Python {about['python']}.", ""]
    lines += [
        "| scenario | fix | finding after | predicted | with the profiler | without the profiler | losses |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for name in scenarios():
        row = data["scenarios"].get(name)
        lines.append(f"| `{name}` | {' | '.join(_row(row) if row else ['not measured', '', '', '', '', ''])} |")
    noisy = [(n, r["machine_load"]) for n, r in sorted(data["scenarios"].items()) if r["machine_load"] > about["cores"]]
    if noisy:
        said = ", ".join(f"`{n}` {load}" for n, load in noisy)
        lines += [
            "",
            "The machine was busy with other work. The times of these rows say little; findings and losses are not affected. Load "
            f"averages above its cores: {said}.",
        ]
    return lines


def _row(row: dict[str, Any]) -> list[str]:
    parts = (fix.split(": ", 2) for fix in row["fixes"])  # safety, finding, what it does
    safety = "<br>".join(dict.fromkeys(f"{safe}: {does}" for safe, _, does in parts))
    if not row["runs"]:
        return [safety, "not measured: needs a GPU", "", "", "", _losses(row)]
    return [safety, *_compared(row), _losses(row)]


def _compared(row: dict[str, Any]) -> list[str]:
    """What became of the findings, promised, measured with and without the profiler."""
    promise, step = row["promise"], row["step_time"]
    promised = f"up to {_ms(promise['time_us_per_step'])}, {promise['basis']}" if promise["time_us_per_step"] else "–"
    gain = f"{_ms(promise['measured_us'])} ({_ms(step['before'])} → {_ms(step['after'])})"
    if (promise["time_us_per_step"] or 0.0) > (step["before"] or 0.0):
        gain += ", the predicted saving is in few long steps, which the median leaves out"
    elif step["verdict"] != "faster":
        gain += f", {step['verdict'].replace('_', ' ')}"
    before, after = row["plain_ms"]["before"], row["plain_ms"]["after"]
    plain = f"{_ms((median(before) - median(after)) * 1e3)} ({_range(before)} → {_range(after)})"
    fates = "<br>".join(f.replace("gone", "fixed").replace("still_there", "not fixed").replace("_", " ") for f in row["fates"])
    return [fates, promised, gain, plain]


def _losses(row: dict[str, Any]) -> str:
    if row["losses_same"]:
        return "bitwise identical"
    repeat = "" if row["losses_repeat"] else "; two runs of one script differ too"
    return f"differ by at most {row['losses_worst']:.1g}, at the end by {row['losses_last']:.1g}{repeat}"


def _ms(us: float | None) -> str:
    return "–" if us is None else f"{us / 1e3:,.{1 if abs(us) >= 1e4 else 2}f} ms"


def _range(milliseconds: list[float]) -> str:
    low, high = min(milliseconds), max(milliseconds)
    digits = 1 if high >= 10 else 2
    return f"{low:.{digits}f}–{high:.{digits}f} ms" if low != high else f"{low:.{digits}f} ms"


if __name__ == "__main__":
    main()
