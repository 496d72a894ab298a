"""Findings that a capture of a script could give: every rule's fixes, at the lines of the script that the rule is about."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import TypeGuard

import msgspec
from plausible import Program, is_plausible

from trace_doctor.model import Finding, Fix, Location, Target
from trace_doctor.program.source_tree import SourceTree
from trace_doctor.registry import all_rules
from trace_doctor.testing import run_case

MODULE = "<module>"
_STEPS = ("backward", "manual_backward")
_READS = ("item", "tolist", "cpu", "numpy")
_MAKES = ("zeros", "ones", "full", "arange", "randn", "rand", "tensor", "eye")
_HOOKS = ("training_step", "compute_loss")
_PER_FILE, _FILES = 1, 3
_SHAPING = ("mode", "call", "callee", "dtype", "args")
"""parameters that make another edit of a codemod; others only change a number in it"""
_SEARCHED = 15
"""files of a folder in which a capture without stacks is tried: with more one names the script"""
_CONVOLUTION = r"Conv[23]d|torchvision|timm|resnet"
_ADAM = r"\bAdamW?\b|Trainer\("
FAULTS: dict[str, str] = {
    "TD101": r"DataLoader|Trainer\(",
    "TD102": r"DataLoader|Trainer\(",
    "TD103": r"DataLoader|Trainer\(",
    "TD304": _ADAM,
    "TD305": r"set_to_none\s*=\s*False",
    "TD306": _CONVOLUTION,
    "TD404 move": r"zero_grad\(",
    "TD404 drop-set-to-none-false": r"set_to_none\s*=\s*False",
    "TD404 add": r"(?s)\A(?!.*zero_grad\().*\.step\(",
    "TD407": _ADAM,
    "TD501": r"torch\.compile\(|torch_compile",
    "TD502": r"torch\.compile\(|torch_compile",
    "TD504": r"torch\.compile\(|torch_compile",
    "TD601": r"DistributedDataParallel",
    "TD604": r"DistributedDataParallel|Accelerator\(|Trainer\(|deepspeed",
    "TD605": r"FullyShardedDataParallel|fully_shard",
}
"""what the text of a program that has a rule's fault holds; of the rules left out any program can have the fault, or its
site is the fault (a read, a copy, an attention)"""
_OF_CASE = "train.py:8"
"""the place in titles of the rules' own cases"""
_NEEDS_STACKS = ("graph-break-line", "mark-dynamic")
_WITH_LINES = ("TD4", "TD5")
"""memory snapshots and compile events name lines, stacks of the profiler only functions"""


@dataclass(frozen=True)
class Site:
    """A line of a script that some rule's finding could point to. `name` is a name that stands there."""

    file: str
    line: int
    function: str
    kind: str
    name: str = ""


SITES: dict[str, tuple[str, ...]] = {
    "every-n-guard": ("read",),
    "save-every-n": ("save",),
    "sum-on-device": ("read",),
    "detach-accumulation": ("sum",),
    "remove-call": ("call",),
    "use-sdpa": ("softmax",),
    "sdpa-backend": ("sdpa",),
    "graph-break-line": ("break",),
    "mark-dynamic": ("compiled",),
    "tensor-device": ("make",),
    "pinned-copies": ("copy",),
}
"""what a codemod's finding points to; all others: the training loop"""


def sites(tree: SourceTree) -> list[Site]:
    """At most a few per kind and file, in source order; files that train first."""
    found: list[Site] = []
    modules = dict(_parsed(tree))
    called = {_last(c.func) for m in modules.values() for c in ast.walk(m) if isinstance(c, ast.Call)}
    reading = {f.name for m in modules.values() for f in ast.walk(m) if _reads(f)}
    for file, module in modules.items():
        if not tree.imports.importers[file] and not any(map(_runs, module.body)):
            continue  # nothing starts it
        seen: dict[tuple[str, str], int] = {}
        for site in _sites(file, module, called, reading):
            key = (site.kind, site.name if site.kind == "call" else "")
            seen[key] = seen.get(key, 0) + 1
            if seen[key] <= _PER_FILE:
                found.append(site)
    kept = []
    for kind in dict.fromkeys(s.kind for s in found):
        files = list(dict.fromkeys(s.file for s in found if s.kind == kind))[:_FILES]
        kept += [s for s in found if s.kind == kind and s.file in files]
    return kept


def _parsed(tree: SourceTree) -> Iterator[tuple[str, ast.Module]]:
    for file in tree.files:
        with suppress(SyntaxError, ValueError):
            yield file, ast.parse(tree.data(file))


def _runs(statement: ast.stmt) -> bool:
    """Whether a statement of a module does more than define, import and bind."""
    kinds = ast.FunctionDef | ast.ClassDef | ast.Import | ast.ImportFrom | ast.Assign | ast.AnnAssign
    is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    return not isinstance(statement, kinds) and not is_text


def _reads(node: ast.AST) -> TypeGuard[ast.FunctionDef]:
    """Whether a function reads a value from the device, whatever its arguments are."""
    calls = (
        (c for c in ast.walk(node) if isinstance(c, ast.Call)) if isinstance(node, ast.FunctionDef) else ()
    )
    return any(_last(c.func) in _READS and not c.args for c in calls)


def _sites(file: str, module: ast.Module, called: set[str], reading: set[str]) -> Iterator[Site]:
    """`called`: names of all that the program calls; `reading`: of its functions that read from the device."""
    up = {child: node for node in ast.walk(module) for child in ast.iter_child_nodes(node)}

    def above(node: ast.AST) -> Iterator[ast.AST]:
        while node in up:
            node = up[node]
            yield node

    def function(node: ast.AST) -> str:
        return next((a.name for a in above(node) if isinstance(a, ast.FunctionDef)), MODULE)

    def looped(node: ast.AST) -> bool:
        return any(isinstance(a, ast.For | ast.While) for a in above(node))

    def steps_again(node: ast.AST) -> bool:
        """Whether something runs in more than one step: in a loop, or in a function that something calls."""
        return looped(node) or function(node) in {*called, *_HOOKS} - {MODULE}

    def waits_anyway(node: ast.AST) -> bool:
        """Whether another function of the program reads in each iteration of the loop, so that the wait would go there."""
        loop = next((a for a in above(node) if isinstance(a, ast.For | ast.While)), None)
        within = (c for line in loop.body for c in ast.walk(line)) if loop is not None else ()
        return any(isinstance(c, ast.Call) and _last(c.func) in reading - set(_READS) for c in within)

    calls = sorted((n for n in ast.walk(module) if isinstance(n, ast.Call)), key=lambda n: n.lineno)
    steps = [c for c in calls if _last(c.func) in _STEPS]
    training = {function(c) for c in steps} | set(_HOOKS)
    done: set[str] = set()
    for call in calls:
        name, home = _last(call.func), function(call)
        starts = name in ("train", "fit") and isinstance(call.func, ast.Attribute)
        starts = starts and _is_trainer(call.func) and home not in done
        if (name in _STEPS or starts) and home not in done and (starts or steps_again(call)):
            done.add(home)
            yield Site(file, call.lineno, home, "loop")
        within = home in training and (looped(call) or home in _HOOKS)
        if within and ((name in _READS and not call.args) or name == "float") and not waits_anyway(call):
            yield Site(file, call.lineno, home, "read")
        if within and name in ("to", "cuda") and (call.args or name == "cuda"):
            yield Site(file, call.lineno, home, "copy")
        if within and name in _MAKES and ast.unparse(call.func).startswith("torch."):
            yield Site(file, call.lineno, home, "make")
        if looped(call) and name in ("synchronize", "empty_cache"):
            yield Site(file, call.lineno, home, "call", f"torch.cuda.{name}")
        if within and ast.unparse(call.func) == "torch.save":
            yield Site(file, call.lineno, home, "save")
        if home == "forward" and name in ("print", "item"):
            yield Site(file, call.lineno, home, "break")
        if name == "softmax" and home != MODULE:
            yield Site(file, call.lineno, home, "softmax")
        if name == "scaled_dot_product_attention":
            yield Site(file, call.lineno, home, "sdpa")
        if within and name == "append" and _keeps_loss(call):
            yield Site(file, call.lineno, home, "sum")
    for node in ast.walk(module):
        kept = isinstance(node, ast.AugAssign) and _keeps_loss(node.value)
        if kept and function(node) in training and looped(node):
            yield Site(file, node.lineno, function(node), "sum")
        if isinstance(node, ast.FunctionDef) and node.name == "forward" and len(node.args.args) > 1:
            yield Site(file, node.lineno, node.name, "compiled", node.args.args[1].arg)


def _is_trainer(func: ast.expr) -> bool:
    """Whether `x.train` or `x.fit` is of a Trainer; not `SentencePieceTrainer.train`, which is of the class."""
    of = func.value if isinstance(func, ast.Attribute) else func
    return "rainer" in ast.unparse(of) and (isinstance(of, ast.Call) or not _last(of)[:1].isupper())


def _keeps_loss(node: ast.expr) -> bool:
    """Whether what is added to a sum or list is a loss that nothing takes out of its graph."""
    text = ast.unparse(node)
    return "loss" in text.lower() and not any(w in text for w in ("item(", "detach(", "float(", "numpy("))


def _last(func: ast.expr) -> str:
    return func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else ""


# ---------------------------------------------------------------------- findings


@dataclass(frozen=True)
class Advice:
    """The fixes of one kind of finding."""

    code: str
    name: str
    fixes: tuple[Fix, ...]

    @property
    def codemod(self) -> str:
        return next((f.codemod for f in self.fixes if f.codemod), "")


@cache
def advices() -> list[Advice]:
    """What the rules' own failing cases recommend, each set once."""
    found: dict[str, Advice] = {}
    for rule in all_rules():
        for case in rule.INVALID:
            for claim in run_case(rule, case)[:1]:
                kinds = [(f.codemod, *map(f.params.get, _SHAPING)) for f in claim.fixes]
                key = f"{rule.code} {kinds}"
                found.setdefault(key, Advice(rule.code, rule.name, tuple(claim.fixes)))
    return [a for a in found.values() if a.codemod]


def findings(tree: SourceTree) -> list[tuple[Site | None, bool, Finding]]:
    """(site, whether the capture names its line, finding); without a site for a capture without stacks."""
    there = sites(tree)
    found: list[tuple[Site | None, bool, Finding]] = []
    for advice in advices():
        fix = next((f for f in advice.fixes if f.codemod), None)
        called = str(fix.params.get("call", "")) if fix else ""
        kinds = SITES.get(advice.codemod, ("loop",))
        mine = [s for s in there if s.kind in kinds and called in ("", s.name)]
        exact = advice.code.startswith(_WITH_LINES)
        found += [(site, exact, _finding(advice, site, exact)) for site in mine]
        if mine and advice.codemod not in _NEEDS_STACKS and len(tree.files) <= _SEARCHED:
            found.append((None, False, _finding(advice, None, False)))
    program = Program.of(tree)
    kept = ((site, exact, _plausible(program, finding)) for site, exact, finding in found)
    return [
        (site, exact, finding)
        for site, exact, finding in kept
        if finding.fixes and _has_fault(tree, program, site, finding)
    ]


def _has_fault(tree: SourceTree, program: Program, site: Site | None, finding: Finding) -> bool:
    """Whether the text of the program holds what the finding's fault needs, by FAULTS."""
    fix = next((f for f in finding.fixes if f.codemod), finding.fixes[0])
    mode = fix.params.get("mode", fix.codemod)
    pattern = FAULTS.get(f"{finding.code} {mode}", FAULTS.get(finding.code))
    names = tree.imports.reach([site.file]) if site is not None else program.names
    text = "\n".join(tree.data(name).decode("utf-8", "replace") for name in names)
    return pattern is None or re.search(pattern, text) is not None


def _plausible(program: Program, finding: Finding) -> Finding:
    """Without the fixes that no capture of the program could ask for."""
    fixes = [fix for fix in finding.fixes if is_plausible(program, fix)]
    return msgspec.structs.replace(finding, fixes=fixes)


def _finding(advice: Advice, site: Site | None, exact: bool) -> Finding:
    path, line = (f"/home/them/run/{site.file}", site.line if exact else None) if site else (None, None)
    function = site.function if site else None
    aimed = advice.codemod in SITES and site is not None
    fixes = []
    for fix in advice.fixes:
        params = {k: v for k, v in fix.params.items() if k not in ("file", "line", "function")}
        if fix.codemod == "mark-dynamic" and site is not None:
            params["name"] = site.name
        target = Target(file=path, line=line, function=function) if aimed or fix.target is not None else None
        title = fix.title.replace(_OF_CASE, f"{site.file}:{site.line}" if site else "the line")
        fixes.append(
            msgspec.structs.replace(fix, title=title, params=params, target=target if site else None)
        )
    mark = f"{advices().index(advice)}-{advice.codemod}{'' if site is None else f':{site.file}:{site.line}:{exact}'}"
    return Finding(
        id=f"{advice.code}-{mark}", code=advice.code, name=advice.name, title="t", severity="info", confidence="high",
        message="m", fingerprint=mark, location=Location(file=path, line=line, function=function), fixes=fixes,
    )  # fmt: skip
