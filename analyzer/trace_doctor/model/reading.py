"""A result that was saved is input like any other: its figures are held to what they can be (`quantities`), and what its fixes ask
for is checked; what they claim is not believed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Any

from msgspec.structs import replace

from trace_doctor.errors import UnusableResult, one_line
from trace_doctor.model.findings import Finding, Fix
from trace_doctor.model.jobs import JobDelays
from trace_doctor.model.parameters import PARAMETERS, misfit, parameters
from trace_doctor.model.pictures import Lane, MemorySeries

LARGEST = 1 << 64
"""no figure is more: counts, bytes, ns since 1970"""
LONGEST = 50_000
"""characters of a text: names of kernels and tracebacks are a tenth of it"""
_SHORTEST_US = 1e-4


def check_figures(decoded: Any) -> None:
    """Raises UnusableResult for a number in a JSON value that measures nothing."""
    if not all(-LARGEST <= v <= LARGEST for v in _leaves(decoded) if isinstance(v, int | float)):
        raise UnusableResult("it holds a number that nothing measures")


def count_long(decoded: Any) -> int:
    """How many texts of a JSON value are longer than LONGEST."""
    return sum(isinstance(value, str) and len(value) > LONGEST for value in _leaves(decoded))


def _leaves(decoded: Any) -> Iterator[Any]:
    """All in a JSON value that is neither object nor list, keys of objects among them."""
    stack = [decoded]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            stack += [*value, *value.values()]
        elif isinstance(value, list):
            stack += value
        else:
            yield value


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


def check_pictures(lanes: Iterable[Lane], series: Iterable[MemorySeries]) -> None:
    """Raises UnusableResult for a lane of no length, or a series whose lists do not fit each other."""
    if any(0 < lane.dur_us < _SHORTEST_US for lane in lanes):
        raise UnusableResult("a lane of the timeline is shorter than any clock measures")
    for one in series:
        lengths = {len(one.at), len(one.reserved), *map(len, one.live_by_category.values())}
        if len(lengths) > 1 or one.peak_index >= max(1, len(one.at)):
            raise UnusableResult("the points of a memory series do not fit each other")


def check_jobs(jobs: Iterable[JobDelays]) -> None:
    """Raises UnusableResult for a job whose parts do not fit each other."""
    if why := next(filter(None, (job.misfit() for job in jobs)), ""):
        raise UnusableResult(why)


def check_rows(
    rules: Sequence[str], findings: Sequence[Finding], inputs: int, devices: Set[tuple[int, int]]
) -> None:
    """Raises UnusableResult where a rule has two outcomes, or a finding is of a capture or a device that is not there. `inputs`:
    how many captures there are; none where nobody kept them. `devices`: (input, device) of all rows."""
    if twice := [code for code, count in Counter(rules).items() if count > 1]:
        raise UnusableResult(f"it lists the rule {_short(twice[0])} twice")
    if lost := [f.id for f in findings if inputs and f.input >= inputs]:
        raise UnusableResult(f"{_short(lost[0])} is of a capture that it does not list")
    with_rows = {number for number, _ in devices}
    for finding in findings:
        device = finding.location.device
        if device is not None and finding.input in with_rows and (finding.input, device) not in devices:
            raise UnusableResult(f"{_short(finding.id)} is of a device that its capture does not show")


def checked(findings: Iterable[Finding]) -> list[Finding]:
    """The findings, whose fixes edit no more than their codemods do. Raises UnusableResult for a fix whose parameters its
    codemod does not take."""
    return [_checked(f) if f.fixes else f for f in findings]


def _checked(finding: Finding) -> Finding:
    for number, fix in enumerate(finding.fixes, 1):
        if fix.codemod is not None and (why := misfit(fix.codemod, fix.params)):
            raise UnusableResult(f"{_short(finding.id)}, fix {number} ({fix.codemod}): parameter {why}")
    fixes = [_doubted(f) for f in finding.fixes]
    return finding if fixes == finding.fixes else replace(finding, fixes=fixes)


def _doubted(fix: Fix) -> Fix:
    """A patch without a codemod that makes it is only shown, and so is what people decide on."""
    if fix.kind != "patch" or fix.safety == "display":
        return fix
    if fix.codemod is None or fix.codemod not in PARAMETERS or parameters(fix.codemod, fix.params).shown_only:
        return replace(fix, safety="display")
    return fix


def _short(text: str) -> str:
    return one_line(text)[:40] or "a finding"
