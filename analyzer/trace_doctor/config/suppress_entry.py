"""Which findings an entry of `[tool.trace-doctor.suppress]` speaks of: a rule, a file of it, or a function of the file.

    TD404 = "the smoke test skips the optimizer"
    "TD201 train.py:Trainer.evaluate" = "the metric is needed"

Files are compared by the parts of their paths from the right, so that `train.py` means `src/train.py` and not `pretrain.py`;
functions by their dotted parts likewise, all of which have to be known: `Trainer.evaluate` is no `evaluate` of a class that nobody
names. An entry that would speak of everything is a mistake.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from trace_doctor.config.budget_table import shown
from trace_doctor.errors import UsageError
from trace_doctor.model import Finding
from trace_doctor.registry import all_rules, resolve

_KEY = re.compile(r"(\S+)(?: +(\S.*))?")
_ROOT = re.compile(r"[A-Za-z]:$")
_LOCALS = "<locals>"


@dataclass(frozen=True)
class SuppressEntry:
    key: str
    selector: str
    """a code, a prefix of codes, or a name"""
    file: tuple[str, ...] = ()
    """parts of the path, "" first where it is absolute; without any: every file"""
    function: tuple[str, ...] = ()

    @classmethod
    def parse(cls, key: str, reason: object) -> Self:
        """Raises UsageError, in one line, for an entry without a reason and for one whose parts are empty or name no rule
        or no file."""
        match = _KEY.fullmatch(key)
        if match is None:
            raise UsageError(f'suppress.{shown(key)} must be "RULE", "RULE FILE" or "RULE FILE:FUNCTION"')
        check_selector(match[1], f"suppress.{shown(key)}")
        if not isinstance(reason, str) or not _is_visible(reason):
            raise UsageError(f"suppress.{shown(key)} must give its reason")
        if match[2] is None:
            return cls(key, match[1])
        file, function = _parts(match[2])
        if function is not None and (not dotted(function) or function.isdigit()):
            raise UsageError(f"suppress.{shown(key)}: a function is named after the colon, no line")
        parts = _path(file)
        if not any(parts) or ".." in parts or file.endswith(("/", "\\", ".")):
            raise UsageError(f"suppress.{shown(key)}: the place is a file, or FILE:FUNCTION, without ..")
        return cls(key, match[1], parts, dotted(function or ""))

    def covers(self, finding: Finding, function: str | None = None) -> bool:
        """Whether the entry speaks of this finding: by rule, file and function. `function`: its name where more is known of it
        than the finding says."""
        known = dotted(function or finding.location.function or "")
        return self._of_file(finding) and _ends_in(known, self.function)

    def may_cover(self, finding: Finding) -> bool:
        """Whether it is the rule, the file, and as much of the function as the finding says."""
        known = dotted(finding.location.function or "")
        return self._of_file(finding) and bool(known) and _ends_in(self.function, known)

    def _of_file(self, finding: Finding) -> bool:
        return means(self.selector, finding.code, finding.name) and (
            not self.file or _ends_with(_path(finding.location.file or ""), self.file)
        )


def check_selector(selector: str, where: str) -> None:
    """Raises UsageError where it names no rule, or all of them."""
    if len(resolve(selector)) == len(all_rules()):
        raise UsageError(f"{where}: {shown(selector)} is every rule; name those that are meant")


def means(selector: str, code: str, name: str) -> bool:
    """Whether a selector (a code, the beginning of one, or a name) means this rule."""
    return selector == name or code.startswith(selector.upper())


def dotted(function: str) -> tuple[str, ...]:
    """The parts of a function's name without `<locals>`."""
    return tuple(p for p in function.strip().split(".") if p and p != _LOCALS)


def _parts(place: str) -> tuple[str, str | None]:
    """File and function; a colon of a drive parts nothing."""
    file, colon, function = place.strip().rpartition(":")
    if not colon or "/" in function or "\\" in function:
        return place.strip(), None
    return file.strip(), function.strip()


def _path(file: str) -> tuple[str, ...]:
    """Parts of a path as a capture or the source names it."""
    parts = file.replace("\\", "/").split("/")
    return tuple(p for n, p in enumerate(parts) if p not in ("", ".") or (not p and not n))


def _ends_with(path: Sequence[str], end: Sequence[str]) -> bool:
    if not end[0] or _ROOT.match(end[0]):  # absolute
        return tuple(path) == tuple(end)
    return len(path) >= len(end) and tuple(path[len(path) - len(end) :]) == tuple(end)


def _ends_in(name: Sequence[str], parts: Sequence[str]) -> bool:
    return tuple(name[max(len(name) - len(parts), 0) :]) == tuple(parts)


_BLANK = frozenset("\u115f\u1160\u2800\u3164\uffa0")
"""letters and symbols that show nothing"""


def _is_visible(text: str) -> bool:
    return any(unicodedata.category(c)[0] not in "ZC" and c not in _BLANK for c in text)
