"""What the source adds to a result: diffs and targets of its fixes, script names, and the lines around them.

Where no line of the script is to be in it, its places are all that is left: a diff, the code of a candidate and the reason
against an edit hold lines, or parts of them, as much as an excerpt does.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from trace_doctor.errors import printable
from trace_doctor.files import is_utf8
from trace_doctor.fixes.plan import plan
from trace_doctor.fixes.resolved import PlannedFix
from trace_doctor.model import NOT_PATCHED, Finding, Fix, Location, Result, Target
from trace_doctor.program.edits import Change
from trace_doctor.program.source_tree import SourceTree
from trace_doctor.user_frames import is_user_frame

_EXCERPT_LINES = 3
_WITHHELD = "`trace-doctor fix` says why"


def with_diffs(
    result: Result, source: Path, *, torch_version: str | None = None, lines: bool = True
) -> Result:
    """The result with what the source tells: diffs and targets of fixes, script names of locations, source lines.

    A fix that has no place of its own becomes `display`, with the reason in its text. Without `lines` nothing of the text of
    the script is in it.
    """
    tree = SourceTree(source)
    edit_plan = plan(result, source, torch_version=torch_version, tree=tree)
    by_finding: dict[str, list[PlannedFix]] = {}
    for item in edit_plan.items:
        by_finding.setdefault(item.finding.id, []).append(item)
    lines_by_file: dict[str, set[int]] = {}
    findings = []
    for finding in result.findings:
        items = by_finding.get(finding.id, [])
        location = _edited_place(_script_location(finding, tree), items)
        if location.file is not None and location.line is not None and location.file in tree.files:
            lines_by_file.setdefault(location.file, set()).update(_around(location.line))
        fixes = []
        for item in items:
            no_edit = item.status in ("advice", "unresolved")
            if no_edit and item.fix.framework not in ("torch", "", *edit_plan.frameworks):
                continue  # for a framework that the scripts do not use
            fixes.append(_annotate(item, lines))
            if item.change is not None:
                lines_by_file.setdefault(item.change.script.name, set()).update(_edited_lines(item.change))
        findings.append(msgspec.structs.replace(finding, location=location, fixes=fixes))
    scripts = {f.location.file for f in findings} | {
        x.target.file for f in findings for x in f.fixes if x.target
    }
    return msgspec.structs.replace(
        result,
        findings=findings,
        source_root=edit_plan.prefix if is_utf8(edit_plan.prefix) else printable(edit_plan.prefix),
        scripts=sorted(scripts & set(tree.files)),
        source_excerpts=_excerpts(tree, lines_by_file) if lines else {},
    )


def _annotate(item: PlannedFix, lines: bool) -> Fix:
    fix = item.fix
    if item.change is None:
        if fix.codemod is None or not item.why:
            return fix
        places = "".join(
            f"\n{NOT_PATCHED}  {c.file}:{c.line}: {c.code if lines else ''}".rstrip(": ")
            for c in item.candidates
        )
        why = item.missing if lines else _WITHHELD
        text = "\n".join(filter(None, [fix.text, f"{NOT_PATCHED} {why}{places}"]))
        return msgspec.structs.replace(
            fix,
            safety=fix.safety if item.status == "already" else "display",
            text=text,
            sketch=item.sketch if lines else "",
        )
    change = item.change
    notes = [*change.notes, *filter(None, [change.elsewhere])] if lines else ()
    return msgspec.structs.replace(
        fix,
        safety=item.safety,
        framework=change.framework or fix.framework,
        target=Target(
            file=change.script.name, line=change.line, function=change.script.enclosing_function(change.line)
        ),
        diff=item.diff.decode(change.script.encoding, "replace") if lines else None,
        left_out=item.why if item.status in ("covered", "conflict") else "",
        risk=". ".join(filter(None, [fix.risk.rstrip("."), *notes])),
    )


def _script_location(finding: Finding, tree: SourceTree) -> Location:
    location = finding.location
    if location.file is None or not is_user_frame(location.file):
        return location
    names = tree.matches(location.file, location.function, location.line)
    return msgspec.structs.replace(location, file=names[0]) if len(names) == 1 else location


def _edited_place(location: Location, items: list[PlannedFix]) -> Location:
    """Of a finding that knows only the function: the line that its first edit is about."""
    change = next((p.change for p in items if p.change is not None), None)
    if change is None or location.line is not None or location.file not in (None, change.script.name):
        return location
    function = change.script.enclosing_function(change.line)
    return msgspec.structs.replace(location, file=change.script.name, line=change.line, function=function)


def _around(line: int) -> range:
    return range(max(1, line - _EXCERPT_LINES), line + _EXCERPT_LINES + 1)


def _edited_lines(change: Change) -> set[int]:
    lines = {change.script.line_of(e.start) for e in change.edits} | {change.line}
    return {near for line in lines for near in _around(line)}


def _excerpts(tree: SourceTree, lines_by_file: dict[str, set[int]]) -> dict[str, list[tuple[int, str]]]:
    excerpts = {}
    for name, lines in sorted(lines_by_file.items()):
        script = tree.script(name)
        if script is not None:
            count = len(script.line_starts)
            excerpts[name] = [(n, script.line_text(n)) for n in sorted(lines) if n <= count]
    return excerpts
