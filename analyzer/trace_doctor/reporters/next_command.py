"""The last lines of a diagnosis: a command that can be pasted as it is."""

from __future__ import annotations

import shlex

from trace_doctor.model import Result
from trace_doctor.reporters import Options
from trace_doctor.reporters.fix_labels import editable, how_made, is_patch
from trace_doctor.reporters.terminal import Terminal
from trace_doctor.reporters.units import columns, plural


def say_next(terminal: Terminal, result: Result, options: Options) -> None:
    """What to do next, as a command that can be pasted, and before it what that command does."""
    fixes = [fix for finding in result.findings for fix in finding.fixes]
    patches = sum(is_patch(fix) and not fix.left_out for fix in fixes)
    with_edit = sum(map(editable, result.findings))
    looked = result.source_root is not None and any(how_made(fix) == fix.safety for fix in fixes)
    if patches:
        terminal.put(f"{plural(patches, 'patch', 'patches')} ready")
    elif with_edit and result.source_root is not None:
        terminal.put(
            f"{plural(with_edit, 'finding has', 'findings have')} a patch, left out with the source lines"
        )
    elif with_edit:
        has = plural(with_edit, "finding has", "findings have")
        missing = "" if options.source else ": name the script's folder with --source"
        terminal.put(f"{has} an edit if the code is found{missing}")
    elif looked:
        terminal.put("No patch: the next command says why")
    # the report is what was diagnosed, whatever was selected
    captures = (options.report,) if options.report else options.given
    if (patches or with_edit or looked) and options.source and captures:
        arguments = [*map(shlex.quote, captures), f"--source {shlex.quote(options.source)}"]
        if _command(terminal, "trace-doctor fix", arguments):
            return
    if result.findings:
        _command(terminal, "trace-doctor rule", [shlex.quote(result.findings[0].code)])
    elif any(o.outcome == "skipped" and o.capture for o in result.outcomes):
        terminal.put("What to record for the skipped rules:")
        _command(terminal, "trace-doctor capture", [])


def _command(terminal: Terminal, command: str, arguments: list[str]) -> bool:
    """Whether it could be written as a shell reads it: where it is longer than a line it goes on in the next. A name that is
    wider than a line is not broken; one with characters that cannot be shown would not be that name."""
    if any(terminal.clean(a) != a for a in arguments):
        return False
    lines = [f"Next: {command}"]
    for argument in arguments:
        if columns(f"{lines[-1]} {argument} \\") <= terminal.width:
            lines[-1] += f" {argument}"
        else:
            lines.append(f"      {argument}")
    terminal.lines += [f"{line} \\" for line in lines[:-1]] + lines[-1:]
    return True
