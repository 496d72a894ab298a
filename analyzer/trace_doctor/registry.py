"""Which rules there are. Built-in rules come through the same entry point as an outside rule pack's."""

from __future__ import annotations

import difflib
import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import EntryPoint, distributions, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from trace_doctor.errors import TraceDoctorError, UsageError, by_signal
from trace_doctor.files import read_regular
from trace_doctor.rule import Rule

GROUP = "trace_doctor.rules"
_MOST_BYTES = 1 << 20
"""Of the entry points of a package. Those of the largest have some kilobytes"""


@cache
def all_rules() -> tuple[type[Rule], ...]:
    """Every rule of every installed pack, by code. Raises when the built-in pack yields none: an empty diagnosis
    would look like a clean one."""
    rules: dict[str, type[Rule]] = {}
    built_in = 0
    for entry in sorted(_entries(), key=lambda e: (e.name != "builtin", e.name)):
        try:
            pack = list(_rules_of(entry.load()))
            for rule in pack:
                _must_declare_evidence(rule)
        except TraceDoctorError:
            raise
        except BaseException as error:
            if by_signal(error):
                raise
            cause = f"{type(error).__name__}: {error}"
            raise TraceDoctorError(
                f"the rules of {entry.name} ({entry.value}) cannot be loaded: {cause}"
            ) from error
        for rule in pack:
            if rule.code in rules and rules[rule.code] is not rule:
                raise TraceDoctorError(f"two rules have the code {rule.code}: {rules[rule.code]} and {rule}")
            rules[rule.code] = rule
            built_in += entry.name == "builtin"
    if not built_in:
        raise TraceDoctorError("the built-in rules were not found; reinstall trace-doctor")
    return tuple(rules[c] for c in sorted(rules))


def _entries() -> Iterable[EntryPoint]:
    """The packs, each once, however often a package names it. Raises TraceDoctorError for entry points that cannot be read:
    rules may be among them."""
    for package in distributions():
        folder = getattr(package, "_path", None)
        if isinstance(folder, Path):  # no archive
            _must_be_readable(folder / "entry_points.txt")
    try:
        return {entry.value: entry for entry in entry_points(group=GROUP)}.values()
    except Exception as error:
        cause = f"{type(error).__name__}: {error}"
        raise TraceDoctorError(f"the entry points of an installed package cannot be read: {cause}") from error


def _must_be_readable(file: Path) -> None:
    """Python itself reads whatever has the name: it waits for ever for a FIFO, and takes what it may not read for none."""
    try:
        read_regular(file, _MOST_BYTES, own=True).decode()
    except (FileNotFoundError, NotADirectoryError):
        return
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise TraceDoctorError(
            f"the entry points of an installed package cannot be read: {cause}: {file}"
        ) from error


def _must_declare_evidence(rule: type[Rule]) -> None:
    for name in ("needs", "wants", "to_pass"):
        kinds: Any = getattr(rule, name)
        if not isinstance(kinds, tuple) or not all(isinstance(k, type) for k in kinds):
            raise TypeError(f"{rule.code}.{name} is no tuple of kinds of evidence")


def _rules_of(package: ModuleType) -> Iterator[type[Rule]]:
    modules = [package]
    if hasattr(package, "__path__"):
        walk = pkgutil.walk_packages(package.__path__, package.__name__ + ".")
        modules += [importlib.import_module(m.name) for m in walk]
    for module in modules:
        for _, member in inspect.getmembers(module, inspect.isclass):
            if issubclass(member, Rule) and member.code and member.__module__ == module.__name__:
                yield member


def resolve(selector: str) -> list[type[Rule]]:
    """The rules that a code, a prefix (TD1), a name or ALL stands for. Raises UsageError for none of them."""
    if selector.upper() == "ALL":
        return list(all_rules())
    hits = [r for r in all_rules() if r.name == selector or r.code.startswith(selector.upper())]
    if not hits:
        raise UsageError(f"no rule {selector!r}; {_hint(selector)}")
    return hits


def _hint(selector: str) -> str:
    """The code that differs in letters which look like digits, all of its family, or the nearest name."""
    codes = [r.code for r in all_rules()]
    if (code := selector.upper()).startswith("TD"):
        digits = "TD" + code[2:].translate(str.maketrans("OIL", "011"))
        if digits in codes:
            return f"did you mean {digits}?"
        if family := [c for c in codes if c[:3] == digits[:3]]:
            return f"{digits[:3]}xx has {', '.join(family)}"
    elif near := difflib.get_close_matches(selector, [r.name for r in all_rules()], n=1, cutoff=0.55):
        return f"did you mean {near[0]}?"
    return "`trace-doctor rules` lists them"


def choose(
    select: Iterable[str] = (),
    ignore: Iterable[str] = (),
    extend: Iterable[str] = (),
) -> list[type[Rule]]:
    """The rules to run: the selected ones (all by default) and the extended, less the ignored. As in ruff a longer
    selector wins over a shorter one, so that `--ignore TD4 --select TD401` keeps TD401."""
    weight: dict[type[Rule], tuple[int, bool]] = {}
    for selectors, patterns in ((list(select) or ["ALL"], True), (extend, True), (ignore, False)):
        for s in selectors:
            rank = 0 if s.upper() == "ALL" else len(s) if s[:2].upper() == "TD" else 99
            for rule in resolve(s):
                if rank >= weight.get(rule, (-1, False))[0]:
                    weight[rule] = (rank, patterns)
    return [r for r in all_rules() if weight.get(r, (0, False))[1]]
