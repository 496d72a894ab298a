"""How many small faults in what decides a verdict the tests of its area notice.

    python -m pip install coverage
    python bench/mutants.py --count 300 --seed 1 --output bench/mutants.md
    python bench/mutants.py --count 300 --seed 1 --first 184             # go on with a draw, in the same tree
    python bench/mutants.py --count 50 rules/trace_doctor_rules/host     # of these files and folders alone

A mutant is one change of one place: a comparison that includes or excludes its border or is turned round, a part of a
condition that is left out, a condition that is negated, a guard (`if …: continue`, `return` or `raise`) that is gone, a
number that is another. Places are drawn at random from the packages named in AREAS, the same for the same seed, tree and paths.
For each, the tests of its area that run through its line are run, the quickest first; it is killed when one fails. Tests
that compare whole stored outputs are in no area, and those that need PyTorch or the real captures are left out. Nothing is changed in the tree itself: mutants live in copies of it.
Survivors that are accepted, with the reason: bench/mutants_accepted.md.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[1]
AREAS: dict[str, tuple[str, ...]] = {
    "analyzer/trace_doctor/evidence": ("tests/evidence", "tests/rules", "tests/test_rule_cases.py"),
    "analyzer/trace_doctor/engine": ("tests/engine", "tests/gate"),
    "analyzer/trace_doctor/gate": ("tests/gate",),
    "analyzer/trace_doctor/fixes": ("tests/fixes",),
    "rules/trace_doctor_rules": ("tests/rules", "tests/test_rule_cases.py"),
}
"""folder of the code -> its tests"""
MOST = 1500
"""Tests that are run for a mutant, the quickest first"""
_TURNED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_LEAVES = ast.Continue | ast.Return | ast.Raise | ast.Break
_AROUND = {ast.Lt: ast.GtE, ast.LtE: ast.Gt, ast.Gt: ast.LtE, ast.GtE: ast.Lt}


@dataclass(frozen=True)
class Mutant:
    """`start` and `end` are character offsets of the text that is replaced."""

    file: str
    line: int
    what: str
    start: int
    end: int
    text: str


@dataclass(frozen=True)
class Fate:
    mutant: Mutant
    verdict: str
    """killed, survived, late (its tests had not ended at the limit: it may loop for ever, or the machine is slow), or not
    covered by any test"""
    tests: int


def mutants_of(file: str) -> list[Mutant]:
    """All mutants of a file."""
    text = (ROOT / file).read_text(encoding="utf-8")
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))

    def place(node: ast.expr | ast.stmt) -> tuple[int, int]:
        lines = text.splitlines(keepends=True)

        def offset(line: int, column: int) -> int:
            return starts[line - 1] + len(lines[line - 1].encode()[:column].decode())

        assert node.end_lineno is not None and node.end_col_offset is not None
        return offset(node.lineno, node.col_offset), offset(node.end_lineno, node.end_col_offset)

    found: list[Mutant] = []

    def add(node: ast.expr | ast.stmt, what: str, new: str) -> None:
        start, end = place(node)
        found.append(Mutant(file, node.lineno, what, start, end, new))

    for node in _deciding(ast.parse(text)):
        if isinstance(node, ast.Compare) and len(node.ops) == 1:
            for table, what in ((_TURNED, "border or sense"), (_AROUND, "turned round")):
                if (other := table.get(type(node.ops[0]))) is not None:
                    add(node, what, f"({ast.unparse(ast.Compare(node.left, [other()], node.comparators))})")
        elif isinstance(node, ast.BoolOp):
            for n in range(len(node.values)):
                rest = node.values[:n] + node.values[n + 1 :]
                left = rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
                add(node, f"without {ast.unparse(node.values[n])[:60]}", f"({ast.unparse(left)})")
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            add(node, "not negated", f"({ast.unparse(node.operand)})")
        elif isinstance(node, ast.If) and not node.orelse and isinstance(node.body[0], _LEAVES):
            add(node, "guard gone", "pass")
    return found


def _deciding(tree: ast.Module) -> Iterator[ast.AST]:
    """Nodes inside functions; what builds the captures of a rule's cases decides nothing, nor do assertions."""
    for top in ast.walk(tree):
        builds = (
            isinstance(top, ast.FunctionDef)
            and top.returns is not None
            and "Builder" in ast.unparse(top.returns)
        )
        if isinstance(top, ast.FunctionDef) and not builds:
            skipped = {
                id(n) for part in ast.walk(top) if isinstance(part, ast.Assert) for n in ast.walk(part)
            }
            nested = {
                id(n)
                for part in ast.walk(top)
                if isinstance(part, ast.FunctionDef) and part is not top
                for n in ast.walk(part)
            }
            yield from (n for n in ast.walk(top) if id(n) not in skipped and id(n) not in nested)


def chosen_files(paths: Sequence[str]) -> list[str]:
    """The files of AREAS, or those of them that `paths` (files and folders, from the root) hold."""
    files = (path.relative_to(ROOT).as_posix() for area in AREAS for path in (ROOT / area).rglob("*.py"))
    wanted = [path.rstrip("/") for path in paths]
    return sorted(f for f in files if not wanted or any(f == w or f.startswith(f"{w}/") for w in wanted))


def drawn(count: int, seed: int, files: Sequence[str]) -> list[Mutant]:
    """So many mutants, spread over the files as their places are; one for a place."""
    every = [m for file in files for m in mutants_of(file)]
    random.Random(seed).shuffle(every)
    chosen: dict[tuple[str, int], Mutant] = {}
    for mutant in every:
        chosen.setdefault((mutant.file, mutant.line), mutant)
    return list(chosen.values())[:count]


def area_of(file: str) -> tuple[str, ...]:
    return next(tests for area, tests in AREAS.items() if file.startswith(f"{area}/"))


def copied(folder: Path) -> Path:
    """The tree without what git does not know."""
    known = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for name in known.stdout.splitlines():
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    for library in (ROOT / "analyzer").rglob("scan.lib*"):
        shutil.copy2(library, folder / library.relative_to(ROOT))
    return folder


def _environment(tree: Path) -> dict[str, str]:
    path = [str(tree / "analyzer"), str(tree / "rules"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": ":".join(filter(None, path)), "PYTHONDONTWRITEBYTECODE": "1"}


def covering(tree: Path, tests: Sequence[str], files: Sequence[str]) -> dict[tuple[str, int], list[str]]:
    """(file, line) -> those of the tests (files and folders) that pass and run through it, the quickest first; of these files
    alone, as each line that is traced takes time."""
    settings = tree / "coverage.ini"
    included = "".join(f"    {tree / file}\n" for file in files)
    settings.write_text(f"[run]\ndata_file = coverage.db\ninclude =\n{included}")
    plugin = tree / "contexts.py"
    plugin.write_text(
        "import time, coverage, pytest\n"
        "@pytest.hookimpl(hookwrapper=True)\n"
        "def pytest_runtest_protocol(item, nextitem):\n"
        "    c = coverage.Coverage.current()\n"
        "    c and c.switch_context(item.nodeid)\n"
        "    started, failed = time.monotonic(), item.session.testsfailed\n"
        "    yield\n"
        "    if item.session.testsfailed == failed:\n"
        "        with open('seconds.tsv', 'a') as file:\n"
        "            file.write(f'{time.monotonic() - started:.4f}\\t{item.nodeid}\\n')\n"
        "    c and c.switch_context('')\n"
    )
    command = [
        "-m",
        "coverage",
        "run",
        f"--rcfile={settings}",
        "-m",
        "pytest",
        "-q",
        "-p",
        "contexts",
        "-p",
        "no:cacheprovider",
        "-m",
        "not torch",
        *tests,
    ]
    env = _environment(tree)
    env["PYTHONPATH"] = f"{tree}:{env['PYTHONPATH']}"
    subprocess.run([sys.executable, *command], cwd=tree, env=env, check=False, stdout=subprocess.DEVNULL)
    from coverage.numbits import numbits_to_nums

    found: dict[tuple[str, int], set[str]] = {}
    with sqlite3.connect(tree / "coverage.db") as data:
        rows = data.execute(
            "select file.path, context.context, line_bits.numbits from line_bits join file on file.id = file_id "
            "join context on context.id = context_id where context.context != ''"
        )
        for path, test, numbits in rows:
            file = Path(path).relative_to(tree).as_posix()
            for line in numbits_to_nums(numbits):
                found.setdefault((file, line), set()).add(test)
    timed = (line.split("\t", 1) for line in (tree / "seconds.tsv").read_text().splitlines())
    seconds = {test: float(took) for took, test in timed}
    return {place: sorted(tests & seconds.keys(), key=seconds.__getitem__) for place, tests in found.items()}


class Tests:
    """The tests of a tree, collected once and run in forks: bench/mutant_forks.py."""

    def __init__(self, tree: Path, tests: Sequence[str]) -> None:
        self.tree = tree
        orders, order = os.pipe()
        answer, answers = os.pipe()
        env = {**_environment(tree), "MUTANTS_IN": str(orders), "MUTANTS_OUT": str(answers)}
        env["PYTHONPATH"] = f"{ROOT / 'bench'}:{env['PYTHONPATH']}"
        options = [
            "-q",
            "-p",
            "mutant_forks",
            "-p",
            "no:cacheprovider",
            "--basetemp",
            str(tree / "temporary"),
        ]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, "--hypothesis-seed=1", *tests],
            cwd=tree, env=env, pass_fds=(orders, answers), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(orders)
        os.close(answers)
        self.orders, self.answers = os.fdopen(order, "w"), os.fdopen(answer)

    def outcome(self, file: str, tests: Sequence[str], limit: float) -> str:
        """Of the tests with the file as it is in the tree by now: passed, failed or late."""
        print(json.dumps({"file": file, "tests": tests, "limit": limit}), file=self.orders, flush=True)
        if not (answer := self.answers.readline()):
            raise RuntimeError(f"pytest ended with {self.process.wait()}")
        return answer.strip()

    def close(self) -> None:
        self.orders.close()
        self.answers.close()
        self.process.wait()


def tried(mutant: Mutant, tests: Sequence[str], within: Tests, limit: float) -> Fate:
    """Runs the tests over the mutant, the quickest first."""
    if not tests:
        return Fate(mutant, "not covered", 0)
    path = within.tree / mutant.file
    text = path.read_text(encoding="utf-8")
    lines = text[mutant.start : mutant.end].count("\n")  # what follows keeps its line
    new = f"{mutant.text[:-1]}{chr(10) * lines})" if mutant.text.endswith(")") else mutant.text + "\n" * lines
    try:
        path.write_text(text[: mutant.start] + new + text[mutant.end :], encoding="utf-8")
        outcome = within.outcome(mutant.file, tests[:MOST], limit)
    finally:
        path.write_text(text, encoding="utf-8")
    return Fate(mutant, {"passed": "survived", "failed": "killed"}.get(outcome, outcome), len(tests))


def report(fates: Sequence[Fate], seed: int) -> str:
    late = sum(f.verdict == "late" for f in fates)
    lines = [
        f"{len(fates)} mutants, seed {seed}; of {late} the tests had not ended at the limit of time, they count as survivors.",
        "",
        "| package | mutants | killed | share |",
        "|---|--:|--:|--:|",
    ]
    for area in (*AREAS, ""):
        mine = [f for f in fates if f.mutant.file.startswith(area)]
        killed = sum(f.verdict == "killed" for f in mine)
        if mine:
            lines.append(
                f"| {f'`{area}`' if area else 'all'} | {len(mine)} | {killed} | {killed / len(mine):.0%} |"
            )
    lines += ["", "| survivor | change | tests through the line |", "|---|---|--:|"]
    for fate in sorted(fates, key=lambda f: (f.mutant.file, f.mutant.line)):
        if fate.verdict != "killed":
            m = fate.mutant
            change = f"{m.what}: `{' '.join(m.text.split())[:110]}`".replace("|", "\\|")
            lines.append(f"| {m.file}:{m.line} | {change} | {fate.tests} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("paths", nargs="*", help="files or folders of the areas, from the root; all without")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument(
        "--first", type=int, default=1, help="begin at this mutant of the draw, counted from 1"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument(
        "--limit", type=float, default=120, help="seconds after which the tests of a mutant are given up"
    )
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    files = chosen_files(given.paths)
    if not files:
        parser.error(f"no file of {', '.join(AREAS)} is in: {' '.join(given.paths)}")
    mutants = drawn(given.count, given.seed, files)[given.first - 1 :]
    tests = sorted({test for file in files for test in area_of(file)})
    with tempfile.TemporaryDirectory() as folder:
        trees = [copied(Path(folder) / str(n)) for n in range(given.jobs)]
        started = time.monotonic()
        through = covering(trees[0], tests, sorted({m.file for m in mutants}))
        print(
            f"coverage: {len(through)} lines in {time.monotonic() - started:.0f} s",
            file=sys.stderr,
            flush=True,
        )
        free: SimpleQueue[Tests] = SimpleQueue()
        for tree in trees:
            free.put(Tests(tree, tests))

        def one(mutant: Mutant) -> Fate:
            within = free.get()
            try:
                names = area_of(mutant.file)
                mine = [t for t in through.get((mutant.file, mutant.line), ()) if t.startswith(names)]
                fate = tried(mutant, mine, within, given.limit)
            finally:
                free.put(within)
            print(f"{fate.verdict:12} {mutant.file}:{mutant.line} {mutant.what}", file=sys.stderr, flush=True)
            return fate

        with ThreadPoolExecutor(given.jobs) as pool:
            fates = list(pool.map(one, mutants))
        for _ in trees:
            free.get().close()
    text = report(fates, given.seed)
    if given.output:
        given.output.write_text(text, encoding="utf-8")
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
