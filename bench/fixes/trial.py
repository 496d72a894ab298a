"""Tries every fix on public training scripts: `python bench/fixes/trial.py CLONES [--only WORD] [--patches FILE]`.

CLONES holds clones of the repositories in repositories.txt as `owner/name`. Prints one table; exit status 1 where a patch
is not sound (checks.py says what has to hold).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from checks import Checker
from evidence import Site, findings

from trace_doctor.fixes import Plan, plan
from trace_doctor.fixes.resolve import requirements
from trace_doctor.fixes.resolved import PlannedFix
from trace_doctor.model import Finding, Result
from trace_doctor.program.source_tree import SourceTree
from trace_doctor.program.versions import parse, pinned_bounds

TORCH = "2.6"
"""what the captures are said to be of, but where the project is for an older one"""
OUTCOMES = ("safe", "unsafe", "shown", "typed", "by hand", "nothing", "no fault")
_FRAMEWORKS = (
    ("TRL", r"^\s*(?:from|import) trl\b"),
    ("DeepSpeed", r"deepspeed\.initialize\("),
    ("Lightning", r"\b(?:LightningModule|pl\.Trainer|L\.Trainer|Fabric)\b|(?:pytorch_lightning|lightning)[\w.]* import .*Trainer"),
    ("Accelerate", r"\bAccelerator\("),
    ("Trainer, HfArgumentParser", r"HfArgumentParser"),
    ("Trainer", r"\b\w*Trainer\("),
)  # fmt: skip


@dataclass
class Trial:
    scripts: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    repositories: dict[str, set[str]] = field(default_factory=dict)
    outcomes: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """(framework, rule, outcome) -> findings"""
    complaints: list[tuple[str, str]] = field(default_factory=list)
    together: Counter[str] = field(default_factory=Counter)
    unpatched: Counter[str] = field(default_factory=Counter)
    """fixes without a patch: all, and those with a reason, with a place, with the edit as a sketch on lines of the script"""
    messages: Counter[str] = field(default_factory=Counter)
    files: int = 0
    patches: list[dict[str, Any]] = field(default_factory=list)

    def add(self, other: Trial) -> None:
        for name in ("scripts", "repositories"):
            for kind, found in getattr(other, name).items():
                getattr(self, name).setdefault(kind, set()).update(found)
        self.outcomes += other.outcomes
        self.together += other.together
        self.unpatched += other.unpatched
        self.messages += other.messages
        self.files += other.files
        self.complaints += other.complaints


def sources(clones: Path, listing: Path) -> Iterator[tuple[str, Path]]:
    """(repository, folder or script) of each line `owner/name commit [paths...]`."""
    for line in listing.read_text(encoding="utf-8").splitlines():
        repository, _, *paths = line.split()
        for path in paths or ["."]:
            if (found := clones / repository / path).exists():
                yield repository, found
            else:
                print(f"{found}: not there", file=sys.stderr)


def framework(tree: SourceTree, file: str) -> str:
    text = tree.data(file).decode("utf-8", "replace")
    found = [name for name, pattern in _FRAMEWORKS if re.search(pattern, text, re.MULTILINE)]
    return found[0] if found else "plain PyTorch"


def outcome(items: list[PlannedFix]) -> str:
    """The best that a finding's fixes come to; `no fault` where the script does what the first of them asks for."""
    edits = [i for i in items if i.fix.codemod is not None]
    if edits[0].status == "already":
        return "no fault"
    found = {_outcome(i) for i in items}
    return next(o for o in OUTCOMES if o in found)


def _outcome(item: PlannedFix) -> str:
    if item.status in ("ready", "covered"):
        return item.safety
    if item.status == "already":
        return "no fault"
    if item.change is not None:
        return "shown"
    if item.fix.kind in ("command", "env", "config") and item.fix.text:
        return "typed"
    return "by hand" if item.fix.text else "nothing"


def run(repository: str, source: Path) -> tuple[Trial, str]:
    """One repository, and a line to say that it is done."""
    trial, begun = Trial(), time.process_time()
    try:
        _run(source, repository, trial)
    except Exception as error:
        trial.complaints.append((str(source), f"{type(error).__name__}: {error}"))
    return trial, f"{repository} {source.name} {time.process_time() - begun:.1f} s"


def _run_one(asked: tuple[str, Path, float]) -> tuple[Trial, str]:
    repository, source, end = asked
    if time.monotonic() > end:
        return Trial(), f"{repository} {source.name}: no time left"
    return run(repository, source)


def _run(source: Path, repository: str, trial: Trial) -> None:
    tree = SourceTree(source)
    checker, torch = Checker(tree), _torch(source)
    all_ = findings(tree)
    main = next((s.file for s, _, _ in all_ if s is not None and s.kind == "loop"), None)
    if main is None:
        print(f"{source}: no training loop was found", file=sys.stderr)
        return
    for file in {s.file for s, _, _ in all_ if s is not None and s.kind == "loop"}:
        mine = [f for s, _, f in all_ if s is None or s.file == file]
        made = plan(Result(findings=mine), source, tree=tree, torch_version=torch)
        trial.together.update(i.status for i in made.items)
        trial.complaints += [(f"{source} {file} together", w) for w in _together(checker, made, mine, torch)]
    for site, exact, finding in all_:
        made = plan(Result(findings=[finding]), source, tree=tree, torch_version=torch)
        script = site.file if site else main
        kind = framework(tree, script)
        trial.scripts.setdefault(kind, set()).add((str(source), script))
        trial.repositories.setdefault(kind, set()).add(repository)
        trial.outcomes[kind, finding.code, outcome(list(made.items))] += 1
        for item in made.items:
            if item.fix.codemod is not None and not item.diff:
                told = {"reason": item.why, "place": item.candidates, "sketch": item.sketch}
                trial.unpatched.update(["all", *(name for name, said in told.items() if said)])
        wrong = checker.complaints(made, [finding], torch_version=torch)
        trial.complaints += [(f"{source} {finding.id}", w) for w in wrong]
        trial.patches += [
            _record(repository, source, kind, site, exact, item) for item in made.items if item.fix.codemod
        ]
    trial.messages, trial.files = checker.messages, checker.files


def _torch(source: Path) -> str:
    """TORCH, or the newest that a project allows."""
    newest = pinned_bounds(requirements(source if source.is_dir() else source.parent, "README*")).max
    return min((parse(TORCH), TORCH), (newest, ".".join(map(str, newest))))[1] if newest else TORCH


def _together(checker: Checker, made: Plan, mine: list[Finding], torch: str) -> list[str]:
    try:
        return checker.complaints(made, mine, torch_version=torch)
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]


def _record(
    repository: str, source: Path, kind: str, site: Site | None, exact: bool, item: PlannedFix
) -> dict[str, Any]:
    return {
        "repository": repository,
        "source": str(source),
        "framework": kind,
        "at": f"{site.file}:{site.line if exact else '-'}:{site.function}" if site else "",
        "code": item.finding.code,
        "codemod": item.fix.codemod,
        "params": item.fix.params,
        "status": item.status,
        "safety": item.safety,
        "why": item.why,
        "places": [f"{c.file}:{c.line}: {c.code}" for c in item.candidates],
        "notes": item.change.notes if item.change else (),
        "text": item.fix.text if item.fix.kind == "command" else "",
        "advice": [item.finding.name, item.fix.title, item.fix.text, item.fix.risk, item.fix.verify],
        "diff": item.diff.decode("utf-8", "replace"),
    }


def table(trial: Trial, by: int) -> Iterator[str]:
    """Findings by framework (0) or by rule (1), without those whose first fix the script holds already."""
    yield f"{'':28}" + "".join(f"{o:>9}" for o in ("findings", *OUTCOMES[:-1], "patch %"))
    for key in [*sorted({k[by] for k in trial.outcomes}), "all"]:
        row = Counter[str]()
        for parts, count in trial.outcomes.items():
            if key in (parts[by], "all") and parts[2] != "no fault":
                row[parts[2]] += count
        yield (
            f"{key:28}{row.total():9}" + "".join(f"{row[o]:9}" for o in OUTCOMES[:-1]) + f"{_share(row):9.0f}"
        )


def _share(row: Counter[str]) -> float:
    return 100 * (row["safe"] + row["unsafe"]) / max(1, row.total())


def main() -> int:
    asked = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    asked.add_argument("clones", type=Path)
    asked.add_argument("--list", type=Path, default=Path(__file__).with_name("repositories.txt"))
    asked.add_argument("--only", default="", help="repositories whose name holds this")
    asked.add_argument("--minutes", type=float, default=1e6, help="begin no repository after this long")
    asked.add_argument(
        "--patches", type=Path, help="write every fix with its diff or refusal, a JSON object a line"
    )
    asked.add_argument("--jobs", type=int, default=1)
    given = asked.parse_args()
    if given.patches is not None:
        given.patches.write_text("", encoding="utf-8")
    trial = Trial()
    end = time.monotonic() + 60 * given.minutes
    asked_for = [(r, s) for r, s in sources(given.clones, given.list) if given.only in r]
    with multiprocessing.get_context("spawn").Pool(given.jobs) as pool:
        for done, line in pool.imap_unordered(_run_one, [(r, s, end) for r, s in asked_for]):
            trial.add(done)
            print(line, file=sys.stderr, flush=True)
            for where, what in done.complaints:
                print(f"NOT SOUND {where}\n{what}", flush=True)
            if given.patches is not None:
                with given.patches.open("a", encoding="utf-8") as file:
                    file.writelines(json.dumps(p) + "\n" for p in done.patches)
    for kind in sorted(trial.scripts):
        print(f"{kind}: {len(trial.scripts[kind])} scripts of {len(trial.repositories[kind])} repositories")
    print(f"{len(set().union(*trial.repositories.values()))} repositories\n")
    print("\n".join([*table(trial, 0), "", *table(trial, 1), ""]))
    print(f"new messages of ruff in {trial.files} patched files:", dict(sorted(trial.messages.items())))
    print("without a patch:", dict(trial.unpatched))
    print("all of a script together:", dict(sorted(trial.together.items())))
    return bool(trial.complaints)


if __name__ == "__main__":
    raise SystemExit(main())
