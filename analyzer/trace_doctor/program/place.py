"""The place of a program that a finding means, as far as it is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import libcst as cst

from trace_doctor.program.dataflow import dataflow_of
from trace_doctor.program.edits import Candidate, NoEdit, Refusal
from trace_doctor.program.project import Project
from trace_doctor.program.script import Script
from trace_doctor.program.versions import TorchBounds

N = TypeVar("N", bound=cst.CSTNode)


@dataclass(frozen=True)
class Place:
    """Where a fix belongs, as far as it is known.

    `scripts` are the files it can be in; with `line` (and then exactly one script) the capture named the line.
    """

    scripts: Sequence[Script]
    line: int | None = None
    function: str | None = None
    torch: TorchBounds = TorchBounds()
    project: Project | None = None
    """the program that the scripts belong to; None where only they are known"""

    packages: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """oldest (major, minor) release of frameworks that the files beside the scripts allow, where they say so"""

    one_device: bool = False
    """whether each captured process is known to have used a single GPU"""

    @property
    def program(self) -> Project:
        """The project, else one of just these scripts."""
        return self.project or Project(self.scripts)

    @property
    def script(self) -> Script | None:
        """None where several scripts are possible."""
        return self.scripts[0] if len(self.scripts) == 1 else None


def candidate(script: Script, node: cst.CSTNode) -> Candidate:
    """The place of a node, as people are shown it."""
    return Candidate.of(script, script.line(node))


def refusal(
    script: Script, node: cst.CSTNode, why: str, *more: cst.CSTNode, kind: Refusal = "display", **further: str
) -> NoEdit:
    """A refusal that points at a node, and `more` of the script. `further`: the `framework` and `command` of a NoEdit."""
    return NoEdit(kind, why, [candidate(script, n) for n in (node, *more)], **further)


def already(script: Script, node: cst.CSTNode, what: str, framework: str | None = None) -> NoEdit:
    """The refusal of an edit that a node of the script makes superfluous: `what` it does."""
    return NoEdit("already", f"{script.name}:{script.line(node)} {what}", framework=framework)


def only(nodes: Sequence[tuple[Script, N]], what: str, missing: str) -> tuple[Script, N]:
    """The one place among those found; raises NoEdit for none and for several."""
    if len(nodes) == 1:
        return nodes[0]
    if not nodes:
        raise NoEdit("unresolved", missing)
    raise NoEdit("ambiguous", f"{len(nodes)} places {what}", [candidate(s, n) for s, n in nodes])


def started_script(place: Place) -> Script:
    """The script that is started; raises NoEdit for several."""
    return only(
        [(s, s.module) for s in place.scripts],
        "can be the script that is started",
        "no script that is started was found; name it with --script, or its folder with --source",
    )[0]


def on_line(place: Place, nodes: Sequence[tuple[Script, N]]) -> list[tuple[Script, N]]:
    """Those on the line that the capture names; all where it names none."""
    return [(s, n) for s, n in nodes if place.line is None or s.covers(n, place.line)]


def in_function(place: Place, nodes: Sequence[tuple[Script, N]]) -> list[tuple[Script, N]]:
    """Those in the function that the capture names, where the line is not known: captures of today name no lines."""
    script, name = place.script, (place.function or "").replace("<locals>.", "").split(".")[-1]
    if script is None or place.line is not None:
        return list(nodes)
    if name != "<module>" and name not in dataflow_of(script).definitions:
        return list(nodes)
    return [(s, n) for s, n in nodes if s.function_name(n) == name]
