"""`trace-doctor fix`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trace_doctor.cli import common as c
from trace_doctor.cli.paths import spare
from trace_doctor.errors import UsageError

if TYPE_CHECKING:
    from trace_doctor.fixes import Plan, Planned
    from trace_doctor.model import Result


def fix(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH...", help="Captures as for analyze, or one saved result (JSON or report)."
        ),
    ],
    source: c.Source = None,
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
    select: Annotated[
        list[str] | None, typer.Option(help="Only these findings: ids (TD101-1), codes, prefixes, names.")
    ] = None,
    allow_dirty: Annotated[
        bool,
        typer.Option("--allow-dirty", help="Apply although there is no clean git work tree to go back to."),
    ] = False,
    torch_version: c.TorchVersion = None,
    config: c.ConfigFile = None,
    jobs: c.Jobs = None,
    max_memory: c.MaxMemory = None,
    no_progress: c.NoProgress = False,
    quiet: c.Quiet = 0,
    verbose: c.Verbose = 0,
) -> None:
    """Turn findings into a patch of the script. It is printed, written to a file, or applied."""
    from trace_doctor.fixes.apply import apply as write_scripts
    from trace_doctor.fixes.plan import plan

    c.set_verbosity(verbose)
    where = _source(source, script)
    if apply and patch is not None:
        raise UsageError("--apply and --patch exclude each other")
    if diff and (apply or patch is not None):
        raise UsageError("--diff shows the patch and changes nothing; leave it out with --apply or --patch")
    if patch is not None:
        if str(patch) == "-":
            raise UsageError("--patch - is what happens without it: the patch is printed")
        spare([c.Sink("patch", patch, option="patch")], [*paths, where, config])
    c.interrupted_edits(where, (apply or interactive) and patch is None)
    loading = {"jobs": jobs, "max_memory": max_memory}
    result = _result(paths, where, torch_version, config, loading, quiet, no_progress)
    wanted = c.overrides(select=select or [])["select"]
    writes = apply and not interactive
    made = plan(result, where, unsafe=unsafe_fixes or not writes, select=wanted, torch_version=torch_version)
    _explain(made, quiet)
    if (apply or interactive) and patch is None and not allow_dirty and made.outputs:
        _refuse_without_a_way_back(made)
    if interactive:
        made = _ask(made)
    if patch is not None:
        _write_patch(made, patch, quiet)
    elif apply or interactive:
        changed = write_scripts(made, allow_dirty=allow_dirty)
        _applied(made, changed, quiet)
    else:
        _print_patch(made, quiet)


def _source(source: Path | None, script: Path | None) -> Path:
    if source is not None and script is not None:
        raise UsageError("--source and --script exclude each other")
    if script is not None and not script.is_file():
        raise UsageError(f"--script {script}: no such file")
    where = script or source
    if where is None:
        raise UsageError("fix needs the training script: --source DIR, or --script FILE")
    if not where.exists():
        raise UsageError(f"--source {where}: no such folder or file")
    return where


def _refuse_without_a_way_back(made: Plan) -> None:
    """Before anything is asked."""
    from trace_doctor.fixes.apply import no_way_back

    root = made.tree.root.resolve()
    if (why := no_way_back(root, [root / name for name in made.outputs])) is not None:
        raise UsageError(why)


def _result(
    paths: list[str],
    source: Path,
    torch_version: str | None,
    config: Path | None,
    loading: dict[str, Any],
    quiet: int,
    no_progress: bool,
) -> Result:
    """A saved result as it is, captures through the analysis."""
    from trace_doctor.errors import NotACapture, UnusableResult
    from trace_doctor.reporters.saved import read_saved

    if len(paths) == 1 and paths[0].endswith((".json", ".html")) and Path(paths[0]).is_file():
        try:
            return read_saved(Path(paths[0]))
        except NotACapture as error:
            if paths[0].endswith(".html") or isinstance(error, UnusableResult):
                raise
    from trace_doctor.api import analyze
    from trace_doctor.config import load_config

    settings = load_config(
        file=config, overrides=c.overrides(torch_version=torch_version, source=str(source), **loading)
    )
    with c.progress(quiet, not no_progress) as progress:
        result = analyze(*paths, config=settings, source=source, progress=progress)
    for reason in result.incomplete if not quiet else ():
        c.note(reason)
    return result


def _explain(made: Plan, quiet: int) -> None:
    """Each fix in a line or two on stderr: what it does, or why the script is not edited."""
    if quiet:
        return
    for item in made.items:
        finding, fix_ = item.finding, item.fix
        if item.status == "advice" and fix_.framework not in ("torch", "", *made.frameworks):
            continue  # advice for a framework that the scripts do not use
        head = f"{item.label} {finding.name}: {fix_.title}"
        if item.status in ("ready", "held") and item.change is not None:
            _line(f"{head}  [{item.safety}]  {item.change.script.name}:{item.change.line}")
            _consequences(item)
            continue
        how = "by hand" if item.status == "advice" else item.status
        _line(f"{head}  [{how}]{': ' if item.why else ''}{item.why}")
        for place in item.candidates:
            c.note(f"    {place.file}:{place.line}: {place.code}")
        if item.status in ("advice", "display", "ambiguous", "unresolved") and fix_.text:
            c.note("".join(f"    {line}\n" for line in fix_.text.splitlines()).rstrip("\n"))
            _consequences(item)
    for note in made.notes:
        c.note(note)
    if not made.items:
        c.note("no finding has a fix: nothing to do")


def _consequences(item: Planned) -> None:
    """What could go wrong, and how to see that it did not."""
    fix_ = item.fix
    notes = [n for n in (item.change.notes if item.change else ()) if n not in fix_.risk]
    safety = item.safety if item.change else "display"
    for risk in [*notes, fix_.risk] if fix_.risk else notes or [_RISKS[safety]]:
        _line(f"    risk: {risk}")
    _line(f"    verify: {fix_.verify or _VERIFY}")


def _line(text: str) -> None:
    """What a result says cannot begin a line of its own."""
    c.note(text.replace("\n", " "))


_RISKS = {
    "safe": "none known: the losses stay bit by bit the same",
    "unsafe": "may change numerics, randomness, memory or checkpoints",
    "display": "it is for you to judge",
}
_VERIFY = "capture again; `trace-doctor verify BEFORE AFTER` compares the captures"


def _ask(made: Plan) -> Plan:
    """y, n or q for each fix that can be made."""
    ready = c.chosen(
        made.of("ready"),
        lambda item: item.diff.decode("utf-8", "replace"),
        lambda item: f"{item.label} {item.fix.title} [{item.safety}]: apply?",
    )
    return made.only(ready)


def _print_patch(made: Plan, quiet: int) -> None:
    data = made.patch()
    if quiet < 2:
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    if not quiet and data:
        c.note(f"{_count(made)}: nothing was changed; write it with --patch FILE or apply it with --apply")


def _write_patch(made: Plan, path: Path, quiet: int) -> None:
    data = made.patch()
    if not data:
        if not quiet:
            c.note(f"no fix edits the script: {path} is not written")
        return
    c.write(path, data)
    if not quiet:
        c.note(f"{_count(made)} written to {path}: apply with `git apply {path}`")


def _applied(made: Plan, changed: list[str], quiet: int) -> None:
    if quiet:
        return
    c.note(f"{_count(made)} applied to {', '.join(changed)}" if changed else "nothing to change")
    held = len([i for i in made.of("held") if i.safety == "unsafe" and i.why != "not chosen"])
    if held:
        c.note(
            f"{held} more {'fix' if held == 1 else 'fixes'} with --unsafe-fixes (may change numerics or memory)"
        )


def _count(made: Plan) -> str:
    count = len(made.of("ready"))
    return f"{count} {'fix' if count == 1 else 'fixes'}"
