"""Where one fix belongs in the source, and what it changes there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import msgspec

from trace_doctor.errors import UnreadableScript, one_line
from trace_doctor.files import read_regular
from trace_doctor.fixes.codemods import Codemod, codemods
from trace_doctor.fixes.diffs import unified_diff
from trace_doctor.fixes.framework_fixes import in_framework, settings_first
from trace_doctor.fixes.frameworks.trainers import minimum_versions
from trace_doctor.fixes.resolved import PlannedFix, new_bytes, sketch_of
from trace_doctor.model import NOT_PATCHED, Finding, Fix, Location, Result, Target
from trace_doctor.model.parameters import Parameters
from trace_doctor.program import edits as editing
from trace_doctor.program import versions
from trace_doctor.program.edits import Candidate, Change, NoEdit, sketched
from trace_doctor.program.executed import Executed
from trace_doctor.program.place import Place
from trace_doctor.program.project import Project
from trace_doctor.program.queries.entry import entry_scripts, training_files
from trace_doctor.program.queries.reached import uncalled_function
from trace_doctor.program.script import Script
from trace_doctor.program.source_tree import SourceTree, same_function
from trace_doctor.program.versions import TorchBounds
from trace_doctor.user_frames import is_python_file, is_user_frame


@dataclass(frozen=True)
class Source:
    """What fixes are resolved against."""

    tree: SourceTree
    prefix: str
    torch: TorchBounds
    script_names: Mapping[int, list[str]]
    """job -> scripts that any of its findings points into"""
    jobs: Sequence[int]
    """of each capture: another job need not be of the same script"""
    excerpts: Mapping[str, Mapping[int, str]]
    """file -> line -> its text when the result was made, as far as the result holds it"""
    one_device: bool
    """whether each captured process is known to have used a single GPU"""
    executed: Executed
    pins: Sequence[str]
    """texts that may say which torch the project is for"""
    ran: Sequence[str] = ()
    """scripts that the captured run is known to have loaded; empty where that is not known"""


def resolve_all(findings: Iterable[Finding], source: Source) -> Iterator[PlannedFix]:
    """Every fix. Findings of many ranks and steps ask for the same at the same place: that is looked for once, which parses
    the script three times."""
    once: dict[bytes, PlannedFix] = {}
    for finding in findings:
        place = finding.location
        for index, fix in enumerate(finding.fixes):
            key = msgspec.json.encode(
                (fix, place.file, place.line, place.function, _job(finding, source.jobs))
            )
            if key not in once:
                once[key] = _resolve(finding, index, fix, source)
            yield replace(once[key], finding=finding, index=index)


def _resolve(finding: Finding, index: int, fix: Fix, source: Source) -> PlannedFix:
    fix = _without_notes(fix)
    bare = PlannedFix(finding, index, fix, "advice")
    if fix.codemod is None:
        named = _named_line(fix.target or finding.location, source) if fix.kind == "advice" else ()
        return replace(bare, why="no codemod makes this edit" if named else "", candidates=named)
    if fix.codemod not in codemods():
        why = f"this version has no codemod named {one_line(fix.codemod)[:60]}"
        return replace(bare, status="display", why=why)
    mod = codemods()[fix.codemod]
    try:
        change = _run(mod, finding, fix, _parameters(mod, fix), source)
        after = [(file, new_bytes(file, changes, source.tree)) for file, changes in change.files]
        with sketched(change):
            _check_versions(change, source.torch)
        change = _with_pins(change, source.pins)
    except NoEdit as refusal:
        bare = replace(bare, status=refusal.kind, why=refusal.why, fix=_instead(fix, refusal))
        return replace(bare, candidates=refusal.candidates, sketch=sketch_of(refusal.sketches))
    except UnreadableScript as error:
        return replace(bare, status="unresolved", why=str(error))
    diff = b"".join(unified_diff(source.prefix + file.name, file.data, new) for file, new in after)
    if not diff and not change.options:
        return replace(bare, status="already", why="nothing to change")
    ready = replace(bare, status="ready", change=change, diff=diff)
    if ready.safety != "display":
        return ready
    return replace(ready, status="display", sketch=sketch_of([change]))


def _named_line(where: Target | Location, source: Source) -> tuple[Candidate, ...]:
    """The line of the script that advice is about, where the capture names one."""
    target = Target(file=where.file, line=where.line, function=where.function)
    try:
        place = _place(target, source, Place(()))
    except NoEdit:
        return ()
    script = place.script if place is not None else None
    return (Candidate.of(script, place.line),) if script and place and place.line else ()


def _parameters(mod: Codemod, fix: Fix) -> Parameters:
    """The fix's parameters as the codemod takes them. Raises NoEdit for any others."""
    try:
        return mod.parameters(fix.params)
    except msgspec.ValidationError as error:
        why = f"{mod.name} takes no such parameters: {one_line(str(error))[:150]}"
        raise NoEdit("unresolved", why) from None


def _check_versions(change: Change, torch: TorchBounds) -> None:
    """Raises NoEdit for an edit that would not run on every version of torch that the script may be run on."""
    for file, changes in change.files:
        form = versions.refused_form(torch, file.text, editing.apply(file, changes))
        if form is not None:
            raise NoEdit("display", versions.needs(form.name))


def _with_pins(change: Change, pins: Sequence[str]) -> Change:
    """With a note where the project says that an older torch than the edit needs will do."""
    texts = ((file.text, editing.apply(file, changes)) for file, changes in change.files)
    notes = [note for texts in texts if (note := versions.beyond_pins(pins, *texts))]
    return replace(change, notes=(*change.notes, *notes[:1]))


def _instead(fix: Fix, refusal: NoEdit) -> Fix:
    """The fix in the terms of the script's framework: what to type where there is nothing to edit."""
    framework = refusal.framework or fix.framework
    if refusal.command is None:
        return msgspec.structs.replace(fix, framework=framework)
    return msgspec.structs.replace(fix, kind="command", framework=framework, text=refusal.command)


def _without_notes(fix: Fix) -> Fix:
    """The fix as its rule made it, as far as a saved result still tells: another source may hold its place."""
    lines = fix.text.split("\n")
    own = [line for line in lines if not line.startswith(NOT_PATCHED)]
    if len(own) == len(lines):
        return fix
    return msgspec.structs.replace(fix, safety="unsafe", text="\n".join(own), sketch="")


def _run(mod: Codemod, finding: Finding, fix: Fix, params: Parameters, source: Source) -> Change:
    """The change in the program that the capture ran. Raises NoEdit where there is none, or it would have no effect."""
    tree = source.tree
    if tree.single is None:
        _refuse_no_script(tree, fix.target, params.target, finding.location)
    of_job = source.script_names.get(_job(finding, source.jobs), [])
    own = _script_names(finding, fix, tree) or of_job or list(source.ran)
    names = tree.imports.program(own) if own else training_files(tree)
    names = [name for name in names if name in source.ran] or names
    project = Project.of_tree(tree, names, source.executed)
    anywhere = Place(
        (), torch=source.torch, project=project, packages=_packages(tree, names), one_device=source.one_device
    )
    return _first_change(mod, finding, fix, params, source, own, anywhere)


def _first_change(
    mod: Codemod,
    finding: Finding,
    fix: Fix,
    params: Parameters,
    source: Source,
    own: Sequence[str],
    anywhere: Place,
) -> Change:
    """Tries the places from the narrowest to the widest; the first that holds what the codemod looks for decides.

    The widest is the program that the capture ran: other scripts of the folder are not what the finding is about.
    """
    tree, project = source.tree, anywhere.program
    place = _place(_target(mod, finding, fix, params), source, anywhere)
    if settings_first(mod.name) and (change := in_framework(place or anywhere, mod.name, params)):
        return change
    if mod.scope == "program" and fix.target is None:
        return mod.run(replace(anywhere, scripts=entry_scripts(tree, own, mod.words)), params)
    places = [place] if place is not None else []
    if place is None or mod.elsewhere:
        words = (params.mentions,) if params.mentions else mod.words or ("torch",)
        scripts = project.scripts_with(*words)
        wider = ([s for s in scripts if s.name in own], scripts)
        places += [replace(anywhere, scripts=some) for some in wider if some]
    sought = params.mentions or " or ".join(mod.words) or f"what {mod.name} looks for"
    unread = " that could be read" if tree.unreadable else ""
    missing = NoEdit("unresolved", f"no script of the program{unread} holds {sought}")
    for attempt in places:
        try:
            change = _once(mod, attempt, params, mod.run(attempt, params))
            if own and isinstance(change.script, Script) and change.script.name not in own:
                _refuse_uncalled(project, change.script, change.line)
            return change
        except NoEdit as refused:
            if refused.kind == "ambiguous":
                refused.sketches = _at_each(mod, anywhere, params, refused, tree)
            if refused.kind != "unresolved":
                raise
            missing = refused
    if not settings_first(mod.name) and (change := in_framework(place or anywhere, mod.name, params)):
        return change
    raise missing


def _at_each(
    mod: Codemod, anywhere: Place, params: Parameters, refused: NoEdit, tree: SourceTree
) -> tuple[Change, ...]:
    """The edit at each of the few places that it may be for; none where one of them has no edit of its own."""
    changes = []
    for place in refused.candidates if len(refused.candidates) <= 3 else ():
        script = tree.script(place.file) if is_python_file(place.file) else None
        if script is None:
            return ()
        try:
            changes.append(mod.run(replace(anywhere, scripts=[script], line=place.line), params))
        except NoEdit:
            return ()
    apart = {(file.name, edits) for change in changes for file, edits in change.files}
    return tuple(changes) if len(apart) >= len(changes) else ()


def _refuse_no_script(tree: SourceTree, *places: Target | Location | None) -> None:
    """Raises NoEdit where one of them names what is no script, as `<stdin>`: no script of the folder is meant by it. A file of
    the folder that is no Python, as a launch script, is where an earlier plan found the place."""
    for place in places:
        if place is None or not place.file or is_python_file(place.file):
            continue
        if not os.path.isfile(tree.root / place.file):
            raise NoEdit(
                "unresolved", f"the capture names {one_line(_short(place.file))}, which is no script"
            )


def _refuse_uncalled(program: Project, script: Script, line: int) -> None:
    """Raises NoEdit for a place in another file than the capture names, in a function that nothing there calls, as a test."""
    if (function := uncalled_function(program, script, line)) is not None:
        why = f"{script.name}:{line} is in {function.name.value}(), which nothing in the program calls"
        raise NoEdit("display", why, [Candidate.of(script, line)])


def _once(mod: Codemod, place: Place, params: Parameters, change: Change) -> Change:
    """The change, if a second run at the line that the capture names would leave its result alone: an edit moves lines,
    and the next statement of the same kind may come to stand there. Raises NoEdit (display) where it would not."""
    script = change.script
    if place.line is None or not isinstance(script, Script) or script is not place.script:
        return change
    after = Script(new_bytes(script, change.edits), script.name, script.path)
    try:
        again = mod.run(replace(place, scripts=[after], project=None), params)
    except NoEdit:
        return change
    if again.script is not after or new_bytes(after, again.edits) == after.data:
        return change
    why = f"after the edit {after.name}:{place.line} would be another place like it"
    with sketched(change):
        raise NoEdit("display", why, [Candidate.of(script, change.line)])


def _packages(tree: SourceTree, names: list[str]) -> dict[str, tuple[int, int]]:
    texts = (tree.data(n) for n in names if b"check_min_version(" in tree.data(n))
    return minimum_versions(requirements(tree.root), (data.decode("utf-8", "replace") for data in texts))


def _place(target: Target | None, source: Source, anywhere: Place) -> Place | None:
    """The script and line that a target names; None where it names no file of the user's (or one script was given)."""
    tree = source.tree
    if target is None or target.file is None or not is_user_frame(target.file):
        return None
    names = tree.matches(target.file, target.function, target.line)
    if not names and tree.single is not None:
        return None
    if not names and (tree.root / target.file).is_symlink():
        raise NoEdit("display", f"{_short(target.file)} is a link: it is left alone")
    if not names:
        where = "not among the scripts that are read" if tree.left_out else "not below the source folder"
        why = f"the capture names {_short(target.file)}, which is {where}"
        raise NoEdit("unresolved", why)
    if len(names) > 1:
        doubts = [Candidate(name, target.line or 1, "") for name in names]
        raise NoEdit("ambiguous", f"{_short(target.file)} can be {len(names)} files", doubts)
    script = tree.script(names[0])
    if script is None:
        raise NoEdit("unresolved", tree.unreadable.get(names[0], f"{names[0]} cannot be read"))
    line = target.line and _line_now(script, target.line, source.excerpts.get(script.name, {}))
    if line is not None and not same_function(script.enclosing_function(line), target.function):
        where = f"{script.name}:{line} is not in {target.function}"
        raise NoEdit("unresolved", f"{where}: the script has changed since the capture")
    return replace(anywhere, scripts=[script], line=line, function=target.function)


def _line_now(script: Script, line: int, excerpts: Mapping[int, str]) -> int:
    """Where the statement of a line stands by now, which earlier fixes may have moved; the line as it is where the result
    does not hold its text. Raises NoEdit (unresolved) where it is gone, or could be one of several."""
    text = excerpts.get(line)
    if text is None or script.line_text(line) == text:
        return line
    same = [n for n in range(1, len(script.line_starts) + 1) if script.line_text(n) == text]
    if len(same) == 1 and text.strip():
        return same[0]
    raise NoEdit("unresolved", f"{script.name}:{line} changed since the capture")


def _target(mod: Codemod, finding: Finding, fix: Fix, params: Parameters) -> Target | None:
    """What the fix or its parameters name, else where the finding points to."""
    if fix.target is not None and fix.target.file is not None:
        return fix.target
    location = finding.location
    if params.target is not None:
        return params.target
    if mod.scope != "line" or location.file is None:
        return None
    return Target(file=location.file, line=location.line, function=location.function)


def named_files(result: Result, jobs: Sequence[int], tree: SourceTree) -> dict[int, list[str]]:
    """Job -> scripts that any of its findings points into."""
    names: dict[int, set[str]] = {}
    for finding in result.findings:
        own = names.setdefault(_job(finding, jobs), set())
        for fix in (None, *finding.fixes):
            own.update(_script_names(finding, fix, tree))
    return {job: sorted(own) for job, own in names.items()}


def _job(finding: Finding, jobs: Sequence[int]) -> int:
    return jobs[finding.input] if finding.input < len(jobs) else 0


def _script_names(finding: Finding, fix: Fix | None, tree: SourceTree) -> list[str]:
    """Scripts that a finding and its fix point into, where that is certain."""
    scripts = set()
    for place in (fix.target if fix is not None else None, finding.location):
        if place is not None and place.file and is_user_frame(place.file):
            names = tree.matches(place.file, place.function, place.line)
            scripts |= set(names) if len(names) == 1 else set()
    return sorted(scripts)


def _short(path: str) -> str:
    """The last parts of a captured path: no absolute paths of another machine in outputs."""
    return "/".join(path.replace("\\", "/").split("/")[-2:])


def requirements(root: Path, *more: str) -> list[str]:
    """Texts that say what the scripts of a folder need, there and in the folders around it in its git work tree; the nearest
    first. `more`: patterns of further files."""
    patterns = ("requirements*.txt", "pyproject.toml", "environment*.y*ml", "setup.cfg", "setup.py", *more)
    folders = [root, *islice(root.resolve().parents, git_prefix(root).count("/"))]
    paths = [path for folder in folders for pattern in patterns for path in sorted(folder.glob(pattern))]
    plain = (p for p in paths if p.is_file() and not p.is_symlink() and p.stat().st_size < 200_000)
    texts = []
    for path in plain:
        with suppress(OSError):  # outside of what a server may read
            texts.append(read_regular(path).decode("utf-8", "replace"))
    return texts


def git_prefix(root: Path) -> str:
    """Path of a folder inside its git work tree as `a/b/`; empty at its top and outside of any."""
    here = root.resolve()
    for folder in (here, *here.parents):
        if (folder / ".git").exists():
            inside = here.relative_to(folder).as_posix()
            return "" if inside == "." else f"{inside}/"
    return ""
