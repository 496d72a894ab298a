"""A result that was saved is input like any other: its figures and positions are checked, and what its fixes ask for; what
they claim is not believed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from trace_doctor.errors import UnusableResult, one_line
from trace_doctor.model.findings import Finding, Fix
from trace_doctor.model.parameters import PARAMETERS, misfit, parameters
from trace_doctor.model.pictures import Lane, MemorySeries

MAY_BE_SAFE = frozenset({"allocator-setting", "dataloader-args", "detach-accumulation", "pinned-copies"})
"""codemods that leave the losses as they are, in some scripts: which, they say themselves"""


LARGEST = 1 << 64
"""no figure is more: counts, bytes, ns since 1970"""
LONGEST = 50_000
"""characters of a text: names of kernels and tracebacks are a tenth of it"""
_SHORTEST_US = 1e-4
_LENGTHS = ("step_us", "plain_step_us", "median_us", "mad_us")
"""keys of what a step takes and of how much that varies"""


def check_figures(decoded: Any) -> None:
    """Raises UnusableResult for a number in a JSON value that measures nothing."""
    for key, value in _leaves(decoded):
        if not isinstance(value, int | float):
            continue
        if not -LARGEST <= value <= LARGEST:
            raise UnusableResult("it holds a number that nothing measures")
        if key in _LENGTHS and value < 0:
            raise UnusableResult("a step takes less than no time")


def count_long(decoded: Any) -> int:
    """How many texts of a JSON value are longer than LONGEST."""
    return sum(isinstance(value, str) and len(value) > LONGEST for _, value in _leaves(decoded))


def _leaves(decoded: Any) -> Iterator[tuple[str, Any]]:
    """(its key, or "") of all in a JSON value that is neither object nor list; keys are among the values as well."""
    stack = [("", decoded)]
    while stack:
        key, value = stack.pop()
        if isinstance(value, dict):
            for name, member in value.items():
                yield "", name
                stack.append((name, member))
        elif isinstance(value, list):
            stack += [("", member) for member in value]
        else:
            yield key, value


def shortened(value: Any, key: str = "") -> Any:
    """A JSON value in which no text is longer than LONGEST: it is cut and says so. A diff, of which a part is none, is left
    out."""
    if isinstance(value, dict):
        return {shortened(k): shortened(member, k) for k, member in value.items()}
    if isinstance(value, list):
        return [shortened(member) for member in value]
    if isinstance(value, str) and len(value) > LONGEST:
        return "" if key == "diff" else f"{value[:LONGEST]}… (cut: {len(value):,} characters)"
    return value


def check_positions(rows: Iterable[Any], lanes: Iterable[Lane], series: Iterable[MemorySeries]) -> None:
    """Raises UnusableResult for a row of no capture, a lane of no length, or a series whose lists do not fit each other."""
    if any(row.input < 0 for row in rows):
        raise UnusableResult("a row belongs to no capture")
    if any(lane.dur_us < 0 or 0 < lane.dur_us < _SHORTEST_US for lane in lanes):
        raise UnusableResult("a lane of the timeline is shorter than any clock measures")
    for one in series:
        lengths = {len(one.at), len(one.reserved), *map(len, one.live_by_category.values())}
        if len(lengths) > 1 or not 0 <= one.peak_index < max(1, len(one.at)):
            raise UnusableResult("the points of a memory series do not fit each other")


def checked(findings: Iterable[Finding]) -> list[Finding]:
    """The findings without claims of safety that only they make. Raises UnusableResult for a fix whose parameters its
    codemod does not take."""
    return [_checked(f) if f.fixes else f for f in findings]


def _checked(finding: Finding) -> Finding:
    for number, fix in enumerate(finding.fixes, 1):
        if fix.codemod is not None and (why := misfit(fix.codemod, fix.params)):
            raise UnusableResult(f"{_short(finding.id)}, fix {number} ({fix.codemod}): parameter {why}")
    fixes = [_doubted(f) for f in finding.fixes]
    return finding if fixes == finding.fixes else replace(finding, fixes=fixes)


def _doubted(fix: Fix) -> Fix:
    """Safe is what a codemod finds safe in the script; a patch without a codemod is only shown."""
    if fix.kind != "patch" or fix.safety == "display":
        return fix
    if fix.codemod is None or fix.codemod not in PARAMETERS or parameters(fix.codemod, fix.params).shown_only:
        return replace(fix, safety="display")
    return replace(fix, safety="unsafe") if fix.codemod not in MAY_BE_SAFE else fix


def _short(text: str) -> str:
    return one_line(text)[:40] or "a finding"
