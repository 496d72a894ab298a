"""Small named edits. One module per family; a codemod registers itself by its decorator.
What else a new one takes: docs/writing-codemods.md.

A codemod gets the place that a finding means and its parameters, and returns a `Change` or raises `NoEdit`.
It never guesses between two places, and run on its own output it finds nothing to do. Its parameters are a type of
`model.parameters`, and what it may add to a script is declared beside it: no finding makes it write anything else.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any, Literal, TypeVar

import msgspec

from trace_doctor.fixes.comments import with_comments_named
from trace_doctor.fixes.ran import refuse_measurement, refuse_off_the_path
from trace_doctor.model.parameters import PARAMETERS, Parameters
from trace_doctor.program.edits import Change
from trace_doctor.program.place import Place

Scope = Literal["line", "call", "program"]


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

    def parameters(self, values: Mapping[str, Any]) -> Parameters:
        """The parameters that a fix holds, as the codemod takes them. Raises msgspec.ValidationError for any others."""
        return msgspec.convert(values, self.params)  # type: ignore[no-any-return]


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
    assert PARAMETERS.get(name) == params, (
        f"{name}: enter {params.__name__} for it in model.parameters.PARAMETERS"
    )

    def register(run: Callable[[Place, P], Change]) -> Callable[[Place, P], Change]:
        summary = (run.__doc__ or "").strip().split("\n")[0]

        def run_and_check(place: Place, values: P) -> Change:
            change = run(place, values)
            refuse_off_the_path(place, change, steps=scope == "line")
            refuse_measurement(change)
            return with_comments_named(change)

        _REGISTRY[name] = Codemod(
            name, run_and_check, scope, words, elsewhere, summary, params, frozenset(adds.split())
        )
        return run

    return register


@cache
def codemods() -> dict[str, Codemod]:
    """All codemods by name."""
    for module in pkgutil.iter_modules(__path__):
        import_module(f"{__name__}.{module.name}")
    return dict(sorted(_REGISTRY.items()))
