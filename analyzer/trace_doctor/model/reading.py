"""A result that was saved is input like any other: what its fixes ask for is checked, what they claim is not believed."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from trace_doctor.errors import UnusableResult, one_line
from trace_doctor.model.findings import Finding, Fix
from trace_doctor.model.parameters import PARAMETERS, misfit

MAY_BE_SAFE = frozenset({"allocator-setting", "dataloader-args", "detach-accumulation", "pinned-copies"})
"""codemods that leave the losses as they are, in some scripts: which, they say themselves"""


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
    if fix.codemod not in PARAMETERS:
        return replace(fix, safety="display")
    return replace(fix, safety="unsafe") if fix.codemod not in MAY_BE_SAFE else fix


def _short(text: str) -> str:
    return one_line(text)[:40] or "a finding"
