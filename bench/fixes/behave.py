"""Runs public scripts before and after each fix, on the CPU: `python bench/fixes/behave.py CLONES [--only WORD] [--save FILE]`.

The scripts, with their arguments, are those of behave.txt. Compared are the losses of each `backward()` and the weights after each
step, bit by bit where the fix promises the same numbers, else within TOLERANCES; and what the script prints.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from evidence import findings

from trace_doctor.fixes import plan
from trace_doctor.model import Result
from trace_doctor.program.source_tree import SourceTree

TOLERANCES = {
    "autocast": 0.1,
    "channels-last": 1e-3,
    "chunked-loss": 1e-3,
    "compile-blocks": 1e-3,
    "compile-loss": 1e-3,
    "compile-model": 1e-3,
    "fully-shard": 1e-3,
    "matmul-precision": 1e-2,
    "optimizer-args": 1e-3,
    "use-sdpa": 1e-3,
}
"""by how much the first losses may differ, relative to the loss or to 1; of codemods not listed not at all"""
OTHER_STEPS = {"batch-size", "gradient-accumulation"}
"""edits after which a step is another one: the script only has to run on"""
FIRST = 6
"""losses that are compared within a tolerance: training drifts apart from any rounding"""
FEWER_PRINTS = {"every-n-guard", "graph-break-line"}
_NUMBER = re.compile(r"[-+]?\d*\.\d+(?:[eE][-+]?\d+)?")


@dataclass(frozen=True)
class Script:
    """A line of behave.txt: `owner/name path [flags] [-- arguments]`."""

    repository: str
    path: str
    ranks: int
    cuda: bool
    alone: bool
    """the source is the script, not its folder"""
    processes: int
    make: str
    arguments: tuple[str, ...]


def scripts(listing: Path) -> Iterator[Script]:
    for line in listing.read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        words, _, arguments = line.partition(" -- ")
        repository, path, *flags = shlex.split(words)
        named = dict(f.partition("=")[::2] for f in flags)
        ranks = int(named.get("ranks", "1"))
        yield Script(
            repository, path, ranks, "cuda" in named, "folder" not in named, 1 if "spawns" in named else ranks,
            named.get("make", ""), tuple(shlex.split(arguments)),
        )  # fmt: skip


class Runner:
    """A process that has torch, and forks for each run."""

    def __init__(self) -> None:
        environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "CUDA_VISIBLE_DEVICES": ""}
        environment["PYTHONWARNINGS"] = "ignore"
        self._process = subprocess.Popen(
            ["unshare", "-rn", sys.executable, str(Path(__file__).with_name("running.py"))], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment,
        )  # fmt: skip

    def ran(self, script: Script, root: Path, steps: int) -> dict[str, Any]:
        """One run in a copy of the folder: a script may go on from files of the run before."""
        with tempfile.TemporaryDirectory() as name:
            copy = shutil.copytree(root, Path(name, "r"), symlinks=True)
            return self._ran(script, copy, steps)

    def _ran(self, script: Script, root: Path, steps: int) -> dict[str, Any]:
        asked = {
            "script": str(root / script.path), "root": str(root), "arguments": script.arguments, "cuda": script.cuda,
            "ranks": script.ranks, "processes": script.processes, "steps": steps,
        }  # fmt: skip
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps(asked), file=self._process.stdin, flush=True)
        return dict(json.loads(self._process.stdout.readline()))


def edits(source: Path, file: str) -> Iterator[tuple[str, dict[str, bytes], str]]:
    """(codemod, new bytes by name, diff) of the fixes that a capture of the script could get, and of all of them together."""
    tree, seen = SourceTree(source), set()
    mine = [f for site, _, f in findings(tree) if site is None or site.file == file]
    for asked in [*([f] for f in mine), mine]:
        made = plan(Result(findings=asked), source, tree=tree, torch_version="2.6")
        ready = made.of("ready")
        files = {n: new for n, (_, new) in made.outputs.items()}
        if ready and (key := tuple(sorted(files.items()))) not in seen:
            seen.add(key)
            patch = made.patch().decode("utf-8", "replace")
            name = "+".join(sorted({i.fix.codemod or "" for i in ready})) if asked is not mine else "together"
            yield name, files, patch


def compared(codemod: str, before: dict[str, Any], after: dict[str, Any], steady: bool) -> str:
    if [_kind(e) for e in after["ends"]] != [_kind(e) for e in before["ends"]]:
        return "ends otherwise"
    if codemod == "together" or OTHER_STEPS & set(codemod.split("+")):
        return "ran"
    olds, news = ([_values(n) for n in said["numbers"]] for said in (before, after))
    if steady and olds == news:
        return "same, prints differ" if _prints_differ(codemod, before, after) else "same"
    tolerance = max(TOLERANCES.get(c, 0.0 if steady else 1e-6) for c in codemod.split("+"))
    for old, new in zip(olds, news, strict=True):
        old, new = _losses(old), _losses(new)
        pairs = list(zip(old, new, strict=False))[:FIRST]
        skips = "autocast" in codemod  # a GradScaler skips steps until its scale fits
        if (len(old) != len(new) and not skips) or any(
            abs(a - b) > tolerance * max(1.0, abs(a)) for a, b in pairs
        ):
            return "differs"
    return "within" if tolerance else "differs"


def _kind(end: str) -> str:
    return "ran" if end in ("stopped", "ended") else end


def _values(text: str) -> list[tuple[str, float]]:
    return [(kind, float.fromhex(value)) for kind, value in (line.split() for line in text.splitlines())]


def _losses(said: list[tuple[str, float]]) -> list[float]:
    """The last loss before each step, and those after the last."""
    after = [kind for kind, _ in said[1:]] + [""]
    return [value for (kind, value), next_ in zip(said, after, strict=True) if kind == "loss" != next_]


def _prints_differ(codemod: str, before: dict[str, Any], after: dict[str, Any]) -> bool:
    if codemod in FEWER_PRINTS:
        return False
    old, new = (list(map(float, _NUMBER.findall(said["printed"]))) for said in (before, after))
    return len(old) != len(new) or any(
        abs(a - b) > 1e-4 * max(1.0, abs(a)) for a, b in zip(old, new, strict=False)
    )


def tried(
    runner: Runner, clones: Path, script: Script, steps: int
) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """(codemod, outcome, diff, what the two runs said); first of the script as it is."""
    with tempfile.TemporaryDirectory() as name:
        root = Path(name, "r")
        shutil.copytree(clones / script.repository, root, symlinks=True)
        if script.make:
            subprocess.run(script.make, shell=True, cwd=(root / script.path).parent, check=True)
        before, again = runner.ran(script, root, steps), runner.ran(script, root, steps)
        losses = sum(n.count("loss") for n in before["numbers"])
        if losses < 2 or any(_kind(e) != "ran" for e in before["ends"]):
            yield "", "not run", "", {"before": before}
            return
        steady = before["numbers"] == again["numbers"]
        prints = before["printed"] if not _prints_differ("", before, again) else ""
        yield "", "steady" if steady else "not steady", "", {"before": before}
        source = root / script.path if script.alone else (root / script.path).parent
        for codemod, files, diff in edits(source, Path(script.path).name):
            if script.cuda and ".compile(" in diff:
                continue  # Dynamo asks the GPU that is not there
            folder = (root / script.path).parent
            kept = {n: (folder / n).read_bytes() if (folder / n).exists() else None for n in files}
            for file, data in files.items():
                (folder / file).write_bytes(data)
            after = runner.ran(script, root, steps)
            for file, old in kept.items():
                (folder / file).unlink() if old is None else (folder / file).write_bytes(old)
            outcome = compared(codemod, before, after, steady)
            if outcome == "same, prints differ" and not prints:
                outcome = "same"
            yield codemod, outcome, diff, {"before": before, "after": after}


def main() -> int:
    asked = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    asked.add_argument("clones", type=Path)
    asked.add_argument("--only", default="", help="scripts whose repository and path match this")
    asked.add_argument("--steps", type=int, default=12)
    asked.add_argument("--save", type=Path, help="write every run, a JSON object a line")
    given = asked.parse_args()
    counts: Counter[tuple[str, str]] = Counter()
    ran: Counter[str] = Counter()
    runner = Runner()
    for script in scripts(Path(__file__).with_name("behave.txt")):
        label = f"{script.repository} {script.path}"
        if not re.search(given.only, label):
            continue
        try:
            for codemod, outcome, diff, said in tried(runner, given.clones, script, given.steps):
                if codemod:
                    counts[codemod, outcome] += 1
                else:
                    ran[outcome] += 1
                if outcome in ("differs", "ends otherwise", "same, prints differ", "not run", "not steady"):
                    ends = said.get("after", said["before"])["ends"]
                    print(f"{outcome}: {label} {codemod}: {ends}", flush=True)
                if given.save:
                    with given.save.open("a", encoding="utf-8") as file:
                        record = {
                            "script": label,
                            "codemod": codemod,
                            "outcome": outcome,
                            "diff": diff,
                            **said,
                        }
                        print(json.dumps(record), file=file)
        except Exception as error:
            ran["no plan"] += 1
            print(f"no plan: {label}: {type(error).__name__}: {str(error)[:300]}", flush=True)
    print(dict(ran))
    outcomes = ("same", "within", "ran", "same, prints differ", "differs", "ends otherwise")
    print(f"{'':44}" + "".join(f"{o:>22}" for o in outcomes))
    for name in sorted({c for c, _ in counts}):
        print(f"{name:44}" + "".join(f"{counts[name, o]:22}" for o in outcomes))
    return any(counts[c, o] for c, o in counts if o in ("differs", "ends otherwise"))


if __name__ == "__main__":
    raise SystemExit(main())
