"""From findings to edits: all fixes of a result, which of them are ready, and which go together."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import msgspec

from trace_doctor.errors import UsageError, no_commands
from trace_doctor.fixes.diffs import unified_diff
from trace_doctor.fixes.resolve import Source, git_prefix, named_files, requirements, resolve_all
from trace_doctor.fixes.resolved import PlannedFix, Status, new_bytes, together
from trace_doctor.model import Finding, Result
from trace_doctor.program import edits as editing
from trace_doctor.program.edits import NoEdit
from trace_doctor.program.executed import Executed
from trace_doctor.program.script import FRAMEWORKS
from trace_doctor.program.source_tree import SourceTree
from trace_doctor.program.text_file import TextFile
from trace_doctor.program.versions import bounds


@dataclass(frozen=True)
class Plan:
    """All fixes of a result. `ready` ones can be made together; the rest say why not."""

    tree: SourceTree
    prefix: str
    """path of the source folder inside its git work tree, with a final slash; empty outside of one"""
    items: tuple[PlannedFix, ...]
    notes: tuple[str, ...] = field(default=())

    def of(self, *statuses: Status) -> list[PlannedFix]:
        """Fixes with one of these statuses, in the order of the plan."""
        return [item for item in self.items if item.status in statuses]

    def only(self, choice: Iterable[PlannedFix]) -> Plan:
        """The plan with just these fixes ready."""
        keep = {(c.finding.id, c.index) for c in choice}
        others = {id(i) for i in self.of("ready") if (i.finding.id, i.index) not in keep}
        items = (replace(i, status="held", why="not chosen") if id(i) in others else i for i in self.items)
        return replace(self, items=tuple(items))

    @cached_property
    def frameworks(self) -> frozenset[str]:
        """Which of deepspeed, lightning, accelerate, transformers the scripts import."""
        return frozenset(f for s in self.tree.scripts_with(*FRAMEWORKS) for f in s.frameworks)

    @cached_property
    def outputs(self) -> dict[str, tuple[TextFile, bytes]]:
        """File name -> (file, its new bytes), for the ready fixes together."""
        by_file: dict[str, tuple[TextFile, list[Sequence[editing.Edit]]]] = {}
        for item in self.of("ready"):
            assert item.change is not None
            for file, changes in item.change.files:
                by_file.setdefault(file.name, (file, []))[1].append(changes)
        edits = ((name, file, editing.union(groups)) for name, (file, groups) in sorted(by_file.items()))
        try:
            return {name: (file, new_bytes(file, changes, self.tree)) for name, file, changes in edits}
        except NoEdit as reason:
            raise UsageError(f"these fixes cannot be made together ({reason.why}): choose fewer") from None

    @property
    def patch_base(self) -> Path:
        """The folder that the names in a patch are relative to: the top of the git work tree, else the source folder."""
        return self.tree.root.resolve().joinpath(*[".."] * self.prefix.count("/")).resolve()

    def patch(self) -> bytes:
        """One diff of everything that is ready, for `git apply`. It passes over the lines before each file's diff, which
        say what is in it and how safe that is."""
        return b"".join(
            self.summary(self._of_file(name)).encode() + unified_diff(self.prefix + name, script.data, new)
            for name, (script, new) in self.outputs.items()
        )

    def _of_file(self, name: str) -> list[PlannedFix]:
        return [i for i in self.of("ready") if i.change and name in [f.name for f, _ in i.change.files]]

    @staticmethod
    def summary(fixes: Iterable[PlannedFix]) -> str:
        """One line for each fix; what a capture put into a title cannot start a line of its own."""
        lines = [no_commands(f"# {i.safety}: {i.label} {i.finding.name}: {i.fix.title}") for i in fixes]
        return "".join("".join(c if c.isprintable() else " " for c in line) + "\n" for line in lines)


def plan(
    result: Result,
    source: Path,
    *,
    unsafe: bool = True,
    select: Sequence[str] = (),
    torch_version: str | None = None,
    tree: SourceTree | None = None,
    without_effect: Collection[tuple[str, int]] = (),
    ran: Sequence[str] = (),
) -> Plan:
    """Resolves every fix of a result against the scripts below `source` (a folder or one file).

    `unsafe` also readies fixes that may change numerics; `select` keeps findings by id, code prefix or name, or one fix by its
    label, which alone readies one that people decide on. `ran` names the scripts that the captured run is known to have loaded:
    no other is a place for a fix; nor are the files and lines of `without_effect`. Raises UsageError when there is no such source.
    """
    tree = tree or SourceTree(source)
    prefix = git_prefix(tree.root)
    torch = bounds(result, requirements(tree.root), torch_version)
    excerpts = {name: dict(lines) for name, lines in result.source_excerpts.items()}
    used = {(row.input, row.device) for row in result.time_ledger if row.device >= 0}
    one_device = bool(used) and len({number for number, _ in used}) == len(used)
    executed = Executed(result.lines_run or (), without_effect)
    jobs = [capture.job for capture in result.inputs]
    source_ = Source(
        tree, prefix, torch, named_files(result, jobs, tree), jobs, excerpts, one_device, executed,
        requirements(tree.root, "README*"), ran,
    )  # fmt: skip
    labels = {s.upper() for s in select}
    selected = (f for f in result.findings if is_selected(f, [s.partition(".")[0] for s in select]))
    fixes = [
        _if_chosen(i, labels)
        for i in resolve_all(selected, source_)
        if i.label.upper() in labels or is_selected(i.finding, select)
    ]
    on_hold = {id(i) for i in fixes if not unsafe and i.status == "ready"}
    why = "unsafe: needs --unsafe-fixes"
    items = together([replace(i, status="held", why=why) if id(i) in on_hold else i for i in fixes])
    return Plan(tree, prefix, tuple(items), tuple(tree.notes))


def is_selected(finding: Finding, select: Sequence[str]) -> bool:
    """Whether a finding is meant by its id, a prefix of its code, or its rule's name; all are when nothing is asked."""
    return not select or any(
        finding.code.startswith(s.upper()) or finding.id.upper() == s.upper() or finding.name == s
        for s in select
    )


def _if_chosen(item: PlannedFix, labels: Collection[str]) -> PlannedFix:
    """A fix that people decide on is ready where they name it, and it alone."""
    if item.status != "display" or item.change is None:
        return item
    if item.label.upper() not in labels:
        return replace(item, why=f"for you to decide: --select {item.label}")
    fix = msgspec.structs.replace(item.fix, safety="unsafe")
    return replace(item, status="ready", fix=fix, change=replace(item.change, safety="unsafe"), sketch="")
