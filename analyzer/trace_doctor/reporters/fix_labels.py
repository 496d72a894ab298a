"""Words about fixes: by whom one is made, what it gives, and which is shown first."""

from __future__ import annotations

from trace_doctor.model import NOT_PATCHED, Finding, Fix, Result
from trace_doctor.reporters.labels import bytes_words, how_known

SAFETY = {
    "unsafe": "may change numerics, randomness, memory or checkpoints: review it",
    "display": "for you to decide: made only if you name it with --select",
}


_NO_EDIT = "for you to do: no edit makes it"


_WHERE = {"env": "environment", "config": "configuration file", "command": "command"}


def how_made(fix: Fix) -> str:
    """By whom a fix is made: `unsafe` where `fix` makes it, `manual` or `environment` where it does not."""
    if fix.kind == "patch" and fix.safety != "display" and (fix.codemod or fix.diff):
        return fix.safety
    return _WHERE.get(fix.kind, "manual")


def fix_words(fix: Fix) -> str:
    """In brackets behind a fix: `up to 810 MiB, not enough alone, unsafe`."""
    return ", ".join(p for p in (bytes_of_fix(fix), how_made(fix)) if p)


def bytes_of_fix(fix: Fix) -> str:
    """What it gives by itself, and whether that is enough for an allocation that failed; empty where that is not known."""
    if fix.saving is None or not fix.saving.bytes:
        return ""
    gives = f"{how_known(fix.saving)} {bytes_words(fix.saving)(fix.saving.bytes)}"
    return f"{gives}, not enough alone" if fix.short else gives


def safety_words(fix: Fix) -> str:
    """What its safety means."""
    return SAFETY[fix.safety] if fix.codemod is not None or fix.safety == "unsafe" else _NO_EDIT


def first_shown(finding: Finding) -> Fix | None:
    """The fix of a finding that comes first: a patch already, if one is that is enough alone; None without fixes."""
    return next((f for f in finding.fixes if is_patch(f) and not f.short), next(iter(finding.fixes), None))


def fixed_with(finding: Finding, result: Result) -> str:
    """The id of an earlier finding of the same capture whose first fix is the same edit; empty where there is none."""
    own = first_shown(finding)
    for other in result.findings:
        if own is None or other is finding:
            return ""
        theirs = first_shown(other)
        same = theirs is not None and (own.title, own.codemod, own.params, own.target) == (
            theirs.title,
            theirs.codemod,
            theirs.params,
            theirs.target,
        )
        if same and other.input == finding.input and own.codemod is not None:
            return other.id
    return ""


def why_no_patch(fix: Fix) -> str:
    """What a look at the script found that keeps this fix from being a patch; empty where nothing does."""
    if fix.diff:
        return ""
    reasons = (
        line.removeprefix(NOT_PATCHED) for line in fix.text.splitlines() if line.startswith(NOT_PATCHED)
    )
    return next(reasons, "").strip()


def needs_source(fix: Fix) -> bool:
    """Whether it may become a patch once the script is given."""
    return not fix.diff and how_made(fix) == fix.safety and not why_no_patch(fix)


def editable(finding: Finding) -> bool:
    """Whether there is an edit for it, if the code it is for is found in the script."""
    return any(needs_source(fix) for fix in finding.fixes)


def is_patch(fix: Fix) -> bool:
    """Whether `trace-doctor fix` can apply it: a diff is known and it is not for display only."""
    return bool(fix.diff) and fix.safety != "display"
