"""Small named edits. One module per family; a codemod registers itself by its decorator, so a new file is enough.

A codemod gets the place that a finding means and its parameters, and returns a `Change` or raises `NoEdit`.
It never guesses between two places, and run on its own output it finds nothing to do. Its parameters are a type of
`model.parameters`, and what it may add to a script is declared beside it: no finding makes it write anything else.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Any, Literal, TypeVar

import libcst as cst
import msgspec

from trace_doctor.fixes.edits import Candidate, Change, NoEdit
from trace_doctor.fixes.versions import TorchBounds
from trace_doctor.model.parameters import PARAMETERS, Parameters
from trace_doctor.program.dataflow import tracked
from trace_doctor.program.program import Project
from trace_doctor.program.script import Script

N = TypeVar("N", bound=cst.CSTNode)
Scope = Literal["line", "call", "program"]


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

    @property
    def program(self) -> Project:
        return self.project or Project(self.scripts)

    @property
    def script(self) -> Script | None:
        return self.scripts[0] if len(self.scripts) == 1 else None


Run = Callable[[Place, Any], Change]
"""with parameters of the codemod's type"""
P = TypeVar("P")


@dataclass(frozen=True)
class Codemod:
    name: str
    run: Run
    scope: Scope
    """`line`: the place the finding names; `call`: a call that may be anywhere; `program`: the script that is started"""
    words: tuple[str, ...]
    """a file without one of these words is not looked at"""
    elsewhere: bool
    """where the named file does not hold it, look in the others (a loop's loader is often made in another file)"""
    summary: str
    params: Any = Parameters
    """type of its parameters, as in `model.parameters`"""
    adds: frozenset[str] = frozenset()
    """identifiers and words of strings that it may bring into a script: of calls, imports, arguments and names. Beside
    these only numbers, and what the script itself says."""

    def parameters(self, given: Mapping[str, Any]) -> Parameters:
        """The parameters that a fix holds, as the codemod takes them. Raises msgspec.ValidationError for any others."""
        return msgspec.convert(given, self.params)  # type: ignore[no-any-return]


_REGISTRY: dict[str, Codemod] = {}


def codemod(
    name: str,
    params: type[P],
    *,
    adds: str = "",
    scope: Scope = "line",
    words: tuple[str, ...] = (),
    elsewhere: bool = False,
) -> Callable[[Callable[[Place, P], Change]], Callable[[Place, P], Change]]:
    """Registers a function as a codemod. Its docstring's first line is shown to people."""
    assert PARAMETERS[name] == params, f"{name} has other parameters in model.parameters"

    def register(run: Callable[[Place, P], Change]) -> Callable[[Place, P], Change]:
        summary = (run.__doc__ or "").strip().split("\n")[0]
        _REGISTRY[name] = Codemod(
            name, run, scope, words, elsewhere, summary, params, frozenset(adds.split())
        )
        return run

    return register


@cache
def codemods() -> dict[str, Codemod]:
    """All codemods by name."""
    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return dict(sorted(_REGISTRY.items()))


origins = tracked


def candidate(script: Script, node: cst.CSTNode) -> Candidate:
    line = script.line(node)
    return Candidate(script.name, line, script.line_text(line).strip())


def only(found: Sequence[tuple[Script, Any]], what: str, missing: str) -> tuple[Script, Any]:
    """The one place among those found; raises NoEdit for none and for several."""
    if len(found) == 1:
        return found[0]
    if not found:
        raise NoEdit("unresolved", missing)
    raise NoEdit("ambiguous", f"{len(found)} places {what}", [candidate(s, n) for s, n in found])


def in_function(place: Place, found: Sequence[tuple[Script, N]]) -> list[tuple[Script, N]]:
    """Those in the function that the capture names, where the line is not known: captures of today name no lines."""
    script, name = place.script, (place.function or "").replace("<locals>.", "").split(".")[-1]
    if script is None or place.line is not None:
        return list(found)
    if name != "<module>" and name not in tracked(script).definitions:
        return list(found)
    return [(s, n) for s, n in found if _function_name(s, n) == name]


def _function_name(script: Script, node: cst.CSTNode) -> str:
    function = script.function_of(node)
    return "<module>" if function is None else function.name.value
