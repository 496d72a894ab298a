"""`trace-doctor fix`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trace_doctor.cli import options as o
from trace_doctor.cli.console import Console
from trace_doctor.cli.outputs import Sink
from trace_doctor.cli.paths import apply_words, spare
from trace_doctor.cli.progress import progress_on
from trace_doctor.errors import UsageError, one_line
from trace_doctor.reporters.units import plural

if TYPE_CHECKING:
    from trace_doctor.config import Config
    from trace_doctor.fixes import Plan, PlannedFix
    from trace_doctor.model import Result


def fix(
    *,
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...", help="Captures as for analyze, or one saved result (JSON or report)."
        ),
    ],
    source: o.Source = None,
    script: Annotated[Path | None, typer.Option(help="The one script to fix, instead of --source.")] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Print the patch (the default).")] = False,
    apply: Annotated[bool, typer.Option("--apply", help="Edit the scripts.")] = False,
    patch: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the patch to FILE, for `git apply`.")
    ] = None,
    interactive: Annotated[
        bool, typer.Option("--interactive", "-i", help="Ask for each fix; apply those accepted.")
    ] = False,
    unsafe_fixes: Annotated[
        bool,
        typer.Option(
            "--unsafe-fixes", help="With --apply: also fixes that may change numerics, randomness or memory."
        ),
    ] = False,
    select: o.Findings = None,
    allow_dirty: o.AllowDirty = False,
    setup: o.Setup,
    loading: o.Loading,
    console: Console,
) -> None:
    """Turn findings into a patch of the script. It is printed, written to a file, or applied."""
    from trace_doctor.fixes.apply import apply as write_scripts
    from trace_doctor.fixes.plan import plan
    from trace_doctor.reporters.saved import saved_result

    root = _source(source, script)
    if apply and patch is not None:
        raise UsageError("--apply and --patch exclude each other")
    if diff and (apply or interactive or patch is not None):
        raise UsageError(
            "--diff shows the patch and changes nothing; leave it out with --apply, -i or --patch"
        )
    if patch is not None and str(patch) == "-":
        raise UsageError("--patch - is what happens without it: the patch is printed")
    result = saved_result(Path(paths[0])) if len(paths) == 1 else None
    config = setup.load(source=root, **loading.limits) if result is None else None
    if patch is not None:
        spare([Sink("patch", patch, option="patch")], [*paths, root, setup.config], config)
    if interactive and patch is None:
        _refuse_unfinished(root)
    else:
        finish_or_name_edits(console, root, apply and patch is None)
    if config is not None:
        result = _analyzed(paths, root, config, loading, console)
    assert result is not None
    selected = o.in_parts(select, "select")
    for selector in selected:
        _refuse_unknown(selector, result)
    plan_ = plan(
        result, root, unsafe=unsafe_fixes or not apply or interactive, select=selected,
        torch_version=setup.torch_version,
    )  # fmt: skip
    _explain(plan_, console)
    if (apply or interactive) and patch is None and not allow_dirty and plan_.outputs:
        _refuse_without_a_way_back(plan_)
    if interactive:
        plan_ = _ask(plan_, console)
    if patch is not None:
        _write_patch(plan_, patch, console)
    elif apply or interactive:
        _report_edits(plan_, write_scripts(plan_, allow_dirty=allow_dirty), console)
    else:
        _print_patch(plan_, console)


def _refuse_unknown(selector: str, result: Result) -> None:
    """Raises UsageError for a selector that means no finding of the result, and no rule either."""
    from trace_doctor.fixes.plan import is_selected
    from trace_doctor.fixes.resolved import labels_of
    from trace_doctor.registry import resolve

    if any(is_selected(f, [selector]) or selector.upper() in labels_of(f) for f in result.findings):
        return
    code, _, number = selector.rpartition("-")
    if not (code and number.partition(".")[0].isdigit()):
        resolve(selector)
        return
    there = ", ".join(f.id for f in result.findings) or "none"
    raise UsageError(f"no finding is {one_line(selector)}; there is {there}")


def finish_or_name_edits(console: Console, source: Path, finishes: bool) -> None:
    """An edit that was killed half-way is completed by those who edit, and named to the others."""
    from trace_doctor.fixes.apply import interrupted_edits, recover

    try:
        for line in recover(source) if finishes else interrupted_edits(source):
            console.note(line)
    except UsageError as unreadable:
        if finishes:
            raise
        console.note(str(unreadable))


def _refuse_unfinished(source: Path) -> None:
    """Who is asked about each fix has not asked for the rest of an edit that was killed half-way."""
    from trace_doctor.fixes.apply import interrupted_edits

    if lines := interrupted_edits(source):
        raise UsageError(lines[0])


def _source(source: Path | None, script: Path | None) -> Path:
    if source is not None and script is not None:
        raise UsageError("--source and --script exclude each other")
    if script is not None and script.is_dir():
        raise UsageError(f"--script {script}: a folder; --source takes one")
    if script is not None and not script.is_file():
        raise UsageError(f"--script {script}: {'not a regular file' if script.exists() else 'no such file'}")
    where = script or source
    if where is None:
        raise UsageError("fix needs the training script: --source DIR, or --script FILE")
    if not where.exists():
        raise UsageError(f"--source {where}: no such folder or file")
    return where


def _refuse_without_a_way_back(plan: Plan) -> None:
    """Before anything is asked."""
    from trace_doctor.fixes.apply import no_way_back

    root = plan.tree.root.resolve()
    if (why := no_way_back(root, [root / name for name in plan.outputs])) is not None:
        raise UsageError(why)


def _analyzed(paths: list[str], source: Path, config: Config, loading: o.Loading, console: Console) -> Result:
    from trace_doctor.api import analyze

    with progress_on(console, loading) as progress:
        result = analyze(*paths, config=config, source=source, progress=progress)
    for reason in result.incomplete:
        console.hint(reason)
    return result


def _explain(plan: Plan, console: Console) -> None:
    """Each fix in a line on stderr: what it does, or why the script is not edited. Of a finding without a patch also the lines
    that the edit would change; --verbose adds these of others, what may go wrong, how to verify it, and the fixes for which the
    script has no place."""
    patched = {item.finding.id for item in plan.of("ready", "held", "conflict", "covered")}
    left_out: Counter[str] = Counter()
    shown: set[tuple[str, str, str]] = set()
    for item in plan.items:
        finding, fix_ = item.finding, item.fix
        if item.status == "advice" and fix_.framework not in ("torch", "", *plan.frameworks):
            continue  # advice for a framework that the scripts do not use
        in_full = console.verbose or finding.id not in patched
        if (not in_full and item.status == "unresolved") or (
            not console.verbose and item.status == "already"
        ):
            left_out[item.status] += 1
            continue
        same = (fix_.title, item.status, item.why)  # what two findings advise, as for out of memory
        if not console.verbose and (item.status == "covered" or (item.change is None and same in shown)):
            continue
        shown.add(same)
        head = f"{item.label} {finding.name}: {fix_.title}"
        if item.status in ("ready", "held") and item.change is not None:
            console.hint(f"{head}  [{item.safety}]  {item.change.script.name}:{item.change.line}")
            if item.change.elsewhere:
                console.hint(f"    {item.change.elsewhere}")
            named = finding.fixes[item.index].safety == "display"  # a package that it needs, say
            for note in item.change.notes if named and not console.verbose else ():
                console.hint(f"    {note}")
        else:
            how = _HOW.get(item.status, item.status)
            console.hint(f"{head}  [{how}]{': ' if item.missing else ''}{item.missing}")
            if item.sketch and in_full:
                _block(f"sketch, not applied:\n{item.sketch}", console)
            elif item.status == "advice" and item.candidates and not console.verbose and in_full:
                _block(f"{item.candidates[0].code}\n{fix_.text}", console)
        if console.verbose:
            _in_full(item, console)
    for note in plan.notes:
        console.hint(note)
    if not plan.items:
        console.hint("no fixes available")
    elif left_out:
        counts = [
            f"{plural(n, 'fix', 'fixes')} {_LEFT_OUT[status]}" for status, n in sorted(left_out.items())
        ]
        console.hint(f"{', '.join(counts)}  (--verbose)")


def _in_full(item: PlannedFix, console: Console) -> None:
    """The places that a fix may be for, its text where the script is not edited, its risk and how to verify it."""
    for place in item.candidates[:_MOST_PLACES]:
        console.hint(f"    {place.file}:{place.line}: {place.code}")
    if (more := len(item.candidates) - _MOST_PLACES) > 0:
        console.hint(f"    and {more:,} more")
    if item.status not in ("ready", "held", "already") and item.fix.text:
        _block(item.fix.text, console)
    if item.status != "already":
        _consequences(item, console)


def _consequences(item: PlannedFix, console: Console) -> None:
    """What could go wrong, and how to see that it did not."""
    for risk in _risks(item):
        console.hint(f"    risk: {risk}")
    console.hint(f"    verify: {item.fix.verify or _VERIFY}")


def _risks(item: PlannedFix) -> list[str]:
    """What this edit can change; of any edit, where nothing is known of this one."""
    notes = [n for n in (item.change.notes if item.change else ()) if n not in item.fix.risk]
    known = [*notes, item.fix.risk] if item.fix.risk else notes
    return known or [_RISKS[item.safety if item.change else "display"]]


def _block(text: str, console: Console) -> None:
    console.hint(*(f"    {line}" for line in text.splitlines()))


_MOST_PLACES = 20
_HOW = {"advice": "manual", "display": "manual", "unresolved": "no match", "already": "already done"}
_LEFT_OUT = {"already": "already in the script", "unresolved": "without a match in the script"}
_RISKS = {"unsafe": "may change numerics, randomness, memory or checkpoints", "display": "for you to judge"}
_VERIFY = "record again; `trace-doctor verify BEFORE AFTER` compares the recordings"


def _ask(plan: Plan, console: Console) -> Plan:
    """y, n or q for each fix that can be made."""
    choice = console.choose(
        plan.of("ready"),
        lambda item: item.diff.decode("utf-8", "replace"),
        lambda item: f"{item.label} {item.fix.title} [{item.safety}]: apply?",
    )
    return plan.only(choice)


def _print_patch(plan: Plan, console: Console) -> None:
    data = plan.patch()
    console.print_patch(data)
    if data:
        console.hint(f"{_count(plan)}: not applied; use --apply, or --patch FILE to write the patch")


def _write_patch(plan: Plan, path: Path, console: Console) -> None:
    data = plan.patch()
    if not data:
        console.hint(f"no fix edits the script: {path} is not written")
        return
    console.write(path, data)
    console.hint(f"{_count(plan)} written to {path}: {apply_words(path, plan.patch_base)}")


def _report_edits(plan: Plan, changed: list[str], console: Console) -> None:
    unsafe = [i for i in plan.of("held") if i.safety == "unsafe" and i.why != "not chosen"]
    for item in unsafe:
        console.hint(f"{item.label} risk: {'; '.join(_risks(item))}")
    if changed:
        console.hint(f"{_count(plan)} applied to {', '.join(changed)}", f"Next: {_VERIFY}")
    if changed and unsafe:
        console.hint(f"{plural(len(unsafe), 'more fix', 'more fixes')} with --unsafe-fixes")
    elif unsafe:
        which = "the only fix is unsafe" if len(unsafe) == 1 else f"all {len(unsafe):,} fixes are unsafe"
        console.hint(f"not applied: {which}; add --unsafe-fixes")
    elif not changed:
        console.hint("nothing to change")


def _count(plan: Plan) -> str:
    return plural(len(plan.of("ready")), "fix", "fixes")
