"""What every capture says, to compare two states of the code byte for byte:

    python bench/outputs.py write OUTPUTS [FOLDER ...]     # at one commit, then at the other into another folder
    python bench/outputs.py compare BEFORE AFTER

For each capture below the folders (by default `sample_traces` and `../shared`): the result, the report, the text and all other formats,
and, where its script lies beside it, the patch. Thresholds that a result prints are left out, with `--all` they stay.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import sys
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[1]
_SUFFIXES = (".json", ".json.gz", ".pickle", ".pkl", ".pickle.gz")


def captures(folders: list[Path]) -> Iterator[tuple[str, Path, Path | None]]:
    """(name, what to analyse, its script): each file on its own, and each folder that holds several."""
    for folder in folders:
        files = sorted(p for p in folder.rglob("*") if p.is_file() and p.name.endswith(_SUFFIXES))
        several = sorted({p.parent for p in files if sum(q.parent == p.parent for q in files) > 1})
        for path in [*files, *several]:
            name = f"{folder.name}/{path.relative_to(folder).as_posix()}".replace("/", "+")
            yield name, path, _script(path)


def _script(path: Path) -> Path | None:
    """`fault.py` or `healthy.py` of a sample, for its captures."""
    side = next((part for part in reversed(path.parts) if part in ("fault", "healthy")), None)
    return next((up / f"{side}.py" for up in path.parents if side and (up / f"{side}.py").is_file()), None)


def write(task: tuple[str, Path, Path | None, Path, bool]) -> str:
    name, path, script, out, thresholds = task
    from trace_doctor import analyze
    from trace_doctor.errors import TraceDoctorError
    from trace_doctor.fixes.plan import plan
    from trace_doctor.reporters import FORMATS, render

    folder = out / name
    folder.mkdir(parents=True, exist_ok=True)
    try:
        result = analyze(path, source=script)
        if not thresholds:
            result = _without_thresholds(result)
        for fmt in FORMATS:
            (folder / f"report.{fmt}").write_text(
                render(result, fmt, show_skipped=True, zoom=False), encoding="utf-8"
            )
        if script is not None:
            (folder / "fixes.patch").write_bytes(plan(result, script).patch())
    except TraceDoctorError as refused:
        (folder / "refused.txt").write_text(f"{refused}\n".replace(f"{path.parent}/", ""), encoding="utf-8")
    except Exception:
        (folder / "failed.txt").write_text(traceback.format_exc(), encoding="utf-8")
        return f"{name}: failed"
    return ""


def _without_thresholds(result):  # type: ignore[no-untyped-def]
    findings = [msgspec.structs.replace(f, thresholds={}) for f in result.findings]
    return msgspec.structs.replace(result, findings=findings, config={})


def compare(before: Path, after: Path) -> int:
    """1 where anything differs; prints what, with the first lines of the difference."""
    names = sorted(
        {p.relative_to(d).as_posix() for d in (before, after) for p in d.rglob("*") if p.is_file()}
    )
    differing = [n for n in names if _sum(before / n) != _sum(after / n)]
    for name in differing:
        print(name)
        sides = [
            (d / name).read_text(encoding="utf-8").splitlines() if (d / name).is_file() else []
            for d in (before, after)
        ]
        for line in list(difflib.unified_diff(*sides, lineterm="", n=0))[2:8]:
            print(f"    {line[:200]}")
    print(
        f"{len(names)} outputs of {len({n.split('/')[0] for n in names})} captures, {len(differing)} differ"
    )
    return 1 if differing else 0


def _sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write")
    writing.add_argument("out", type=Path)
    writing.add_argument("folders", type=Path, nargs="*")
    writing.add_argument("--all", action="store_true", help="thresholds too")
    writing.add_argument("--jobs", type=int, default=2)
    comparing = commands.add_parser("compare")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    given = parser.parse_args()
    if given.command == "compare":
        return compare(given.before, given.after)
    folders = given.folders or [p for p in (ROOT / "sample_traces", ROOT.parent / "shared") if p.is_dir()]
    tasks = [
        (name, path, script, given.out, given.all)
        for name, path, script in captures([f.resolve() for f in folders])
    ]
    with ProcessPoolExecutor(given.jobs) as pool:
        for said in pool.map(write, tasks):
            if said:
                print(said, file=sys.stderr)
    print(f"{len(tasks)} captures written to {given.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
