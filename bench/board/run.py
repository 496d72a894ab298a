"""The board of public scripts: is a fault found, patched and kept, and does it gain what an expert's edit gains?

    python -m bench.board.run NAME… --repos FOLDER [--trace-doctor FILE] [--only check time treat]

`scripts.toml` says of each script: repository, commit, command, how its data are made, the fault, and the edits of an expert. A script
is taken out of the repository into a scratch folder, with its fault and, in another one, with the expert's edits instead. By hand means:
whole training time per step, from a tenth of the steps on to the last, by `steptimes.py`, in interleaved pairs of runs.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
HEAD = (
    "script",
    "fault",
    "found",
    "patched",
    "verdict",
    "predicted",
    "measured by treat",
    "measured by hand",
    "minutes",
)
Row = dict[str, Any]
Done = subprocess.CompletedProcess[str]


class Unfit(Exception):
    """A script cannot be made ready or does not run here."""


def git_folder(repos: Path, name: str) -> Path:
    """The git directory of `owner/name` below `repos`: a clone or a bare one, as `owner+name` or `owner/name`."""
    for base in (repos / name.replace("/", "+"), repos / name):
        for folder in (base / ".git", base / "repo" / ".git", base / "repo", base):
            if (folder / "HEAD").is_file():
                return folder
    raise Unfit(f"{name}: no clone below {repos}")


def take_out(git: Path, commit: str, paths: list[str], into: Path) -> None:
    """Writes the files of `paths` at `commit`. What a partial clone lacks is left out."""
    listed = subprocess.run(
        ["git", "--git-dir", git, "ls-tree", "-r", "-z", commit, "--", *paths],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    entries = [entry.split("\t", 1) for entry in listed.split("\0") if entry.startswith("100")]
    wanted = "".join(f"{entry.split()[2]}\n" for entry, _ in entries).encode()
    out = subprocess.run(
        ["git", "--git-dir", git, "cat-file", "--batch"], input=wanted, capture_output=True, check=True
    ).stdout
    at = 0
    for _, path in entries:
        end = out.index(b"\n", at)
        header = out[at:end].split()
        at = end + 1
        if header[-1] == b"missing":
            continue
        size = int(header[2])
        (into / path).parent.mkdir(parents=True, exist_ok=True)
        (into / path).write_bytes(out[at : at + size])
        at += size + 1


def edit(folder: Path, edits: list[Row]) -> None:
    """Makes the edits. Line numbers are those of the file before any; `find` must be in its lines exactly once."""
    for change in sorted(edits, key=lambda change: (change["file"], -change["line"])):
        path = folder / change["file"]
        lines = path.read_text().splitlines(keepends=True)
        first, last = change["line"] - 1, change.get("to", change["line"])
        new = change["put"]
        indent = lines[first][: len(lines[first]) - len(lines[first].lstrip())]
        if "find" in change:
            old = "".join(lines[first:last])
            if old.count(change["find"]) != 1:
                raise Unfit(
                    f"{path}:{change['line']}: {change['find']!r} is there {old.count(change['find'])} times"
                )
            lines[first:last] = [old.replace(change["find"], new)]
        else:
            lines[first : first if change.get("before") else last] = [
                f"{indent}{line}\n" for line in new.splitlines()
            ]
        path.write_text("".join(lines))


def prepare(row: Row, repos: Path, scratch: Path) -> list[Path]:
    """The folders in which the script runs, with its data: with the fault, and with the expert's edits."""
    faulty, skilled = (scratch / side / "of" / "the" / row["name"] for side in ("fault", "expert"))
    name, commit = row["repository"].split("@")
    take_out(git_folder(repos, name), commit, row["paths"], faulty)
    from bench.board import data  # it needs Pillow, which the tests of this file do without

    cwd = row.get("cwd", ".")
    for made in row.get("data", []):
        arguments = {key: value for key, value in made.items() if key != "make"}
        getattr(data, made["make"])(faulty / cwd, **arguments)
    shutil.copytree(faulty, skilled)
    edit(faulty, row.get("setup", []) + row.get("plant", []))
    edit(skilled, row.get("setup", []) + row.get("expert", []))
    return [faulty / cwd, skilled / cwd]


def started(argv: list[str], cwd: Path, row: Row, paths: list[str], extra: dict[str, str]) -> Done:
    path = os.pathsep.join([*paths, *filter(None, [row.get("pythonpath")])])
    environment = {
        **os.environ,
        **row.get("environment", {}),
        **({"PYTHONPATH": path} if path else {}),
        **extra,
    }
    return subprocess.run(
        argv, cwd=cwd, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
    )


def seconds_per_step(argv: list[str], cwd: Path, row: Row, steps: int) -> float:
    """Of the steps from a tenth on to the last, evaluation and checkpoints between them included."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(HERE / "steptimes.py", Path(folder, "sitecustomize.py"))
        done = started(argv, cwd, row, [folder], {"BOARD_TIMES": folder, "BOARD_STEPS": str(steps)})
        found = [json.loads(file.read_text()) for file in Path(folder).glob("*.json")]
    times = max((one["steps"] or one["backwards"] for one in found), key=len, default=[])
    if len(times) < 4:
        raise Unfit(f"{row['name']}: {len(times)} steps, exit code {done.returncode}: {done.stderr[-2000:]}")
    start = max(1, len(times) // 10)
    return (times[-1] - times[start - 1]) / (len(times) - start)


def by_hand(row: Row, sides: list[tuple[list[str], Path]], pairs: int, steps: int) -> str:
    """ "before → after ms, -n%": medians, and the median of the ratios of the pairs."""
    took: list[list[float]] = [[], []]
    for pair in range(pairs):
        for side in (0, 1) if pair % 2 == 0 else (1, 0):
            argv, cwd = sides[side]
            took[side].append(seconds_per_step(argv, cwd, row, steps))
    ratio = median(after / before for before, after in zip(*took, strict=True))
    return f"{median(took[0]) * 1e3:.4g} → {median(took[1]) * 1e3:.4g} ms ({ratio - 1:+.1%})"


def treat(
    row: Row, argv: list[str], cwd: Path, tool: str, options: list[str]
) -> tuple[dict[str, Any], float]:
    """The report of `trace-doctor treat`, and its minutes."""
    report = cwd.parent / f"{row['name']}.json"
    begun = time.monotonic()
    wanted = ["--unsafe-fixes", "-o", f"json={report}", "--patch", f"{report}.patch", *options, "--", *argv]
    done = started([tool, "treat", *wanted], cwd, row, [], {})
    minutes = (time.monotonic() - begun) / 60
    if not report.is_file():
        raise Unfit(
            f"{row['name']}: treat exits with {done.returncode}: {(done.stderr or done.stdout)[-2000:]}"
        )
    return json.loads(report.read_text()), minutes


def summary(row: Row, report: dict[str, Any]) -> list[str]:
    """Found, patched, verdict, predicted and measured, of the attempt at the fault; other fixes that were kept are in the verdict."""
    attempts, rules = report["attempts"], row.get("rules", [])
    labels = [attempt["label"] for attempt in attempts] + [fix["label"] for fix in report["by_hand"]]
    found = [label for label in labels if label.split("-")[0] in rules]
    tried = [attempt for attempt in attempts if attempt["label"] in found]
    ranked = sorted(tried, key=lambda attempt: attempt["fate"] != "kept")
    others = [attempt["label"] for attempt in attempts if attempt["fate"] == "kept" and attempt not in tried]
    also = f"also kept: {', '.join(others)}" if others else ""
    yes_no = ", ".join(found) or (f"no ({', '.join(labels)})" if labels else "no"), "yes" if tried else "no"
    if not ranked:
        return [*yes_no, also or report["verdict"], "–", "–"]
    best = ranked[0]
    share, time_of = (best["predicted"] or {}).get("share_of_step"), (best["effects"] or {}).get("time")
    verdict = f"{best['label']} {best['fate']}" + ("" if best["fate"] == "kept" else f": {best['reason']}")
    together = report["together"]["time"]
    measured = f"{time_of['ratio'] - 1:+.1%}" if time_of else "–"
    all_of_it = f" (all kept: {together['ratio'] - 1:+.1%})" if together else ""
    predicted = f"{best['predicted']['known']} {-share:+.1%}" if share else "–"
    verdict = "; ".join(filter(None, (verdict, also)))
    return [*yes_no, verdict.replace("_", " "), predicted.replace("_", " "), measured + all_of_it]


def main() -> None:
    rows = {row["name"]: row for row in tomllib.loads((HERE / "scripts.toml").read_text())["script"]}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add, kinds = parser.add_argument, ("check", "time", "treat")
    add("names", nargs="*", metavar="NAME", help=f"scripts (default: all): {', '.join(rows)}")
    add("--repos", type=Path, required=True, help="folder with clones, as owner+name or owner/name")
    add("--python", default=sys.executable, help="Python with torch, torchvision and what scripts import")
    add("--trace-doctor", default="trace-doctor", help="the program whose `treat` is tried")
    add("--only", nargs="+", choices=kinds, default=kinds, help="check: eight steps of both sides")
    add("--pairs", type=int, default=5, help="pairs of runs by hand")
    add("--treat-options", default="", help="options for treat, such as '--max-seconds 600'")
    options = parser.parse_args()
    if (tool := shutil.which(options.trace_doctor)) is None:
        parser.error(f"there is no {options.trace_doctor}")
    options.trace_doctor = os.path.abspath(tool)  # scripts run in folders of their own
    print("| " + " | ".join(HEAD) + " |\n|" + " --- |" * len(HEAD))
    for name in options.names or rows:
        try:
            cells = one_row(rows[name], options)
        except Unfit as why:
            print(why, file=sys.stderr)
            cells = [name, rows[name]["fault"], "does not run here", *["–"] * (len(HEAD) - 3)]
        print(f"| {' | '.join(cells)} |", flush=True)


def one_row(row: Row, options: argparse.Namespace) -> list[str]:
    """The cells of a row of the table. The folders are among the temporary files (TMPDIR)."""
    with tempfile.TemporaryDirectory(prefix="board-", ignore_cleanup_errors=True) as folder:
        before, after = row["command"], row.get("expert_command", row["command"])
        sides = [
            ([options.python if part == "python" else part for part in shlex.split(text)], cwd)
            for text, cwd in zip((before, after), prepare(row, options.repos, Path(folder)), strict=True)
        ]
        hand, treated, minutes = "–", ["–"] * 5, "–"
        if "check" in options.only:
            hand = by_hand(row, sides, 1, 8)
        if "time" in options.only:
            hand = by_hand(row, sides, options.pairs, row["steps"])
        if "treat" in options.only:
            extra = shlex.split(options.treat_options)
            report, taken = treat(row, *sides[0], options.trace_doctor, extra)
            treated, minutes = summary(row, report), f"{taken:.0f}"
    return [row["name"], row["fault"], *treated, hand, minutes]


if __name__ == "__main__":
    main()
