"""Where the batch size of a training loader is set, and other sizes in its place."""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from trace_doctor.fixes.literals import source_text
from trace_doctor.program.edits import Change
from trace_doctor.program.place import Place, only, refusal
from trace_doctor.program.project import Project
from trace_doctor.program.queries.arguments import Argument, Arguments
from trace_doctor.program.queries.dataloaders import training_loaders
from trace_doctor.program.queries.values import WhereSet, division_of, set_origin, where_set
from trace_doctor.program.script import Script, argument, assigned_names, literal


def divided_batch(place: Place, count: int) -> Change:
    """Divides the batch size of the training loader, for gradients that are accumulated over `count` batches."""
    scripts = place.program.scripts_with("DataLoader")
    loaders = training_loaders(replace(place, scripts=scripts, line=None, function=None))
    script, call = only(
        loaders,
        "construct a DataLoader that feeds training",
        "the loader whose batches get smaller was not found",
    )
    origin, size = part_of_batch(place, script, call, count)
    refuse_divided(origin, place.program)
    return resize(origin, size)


def part_of_batch(place: Place, script: Script, call: cst.Call, count: int) -> tuple[WhereSet, int]:
    """Where a loader's batch size is set, and the size of one of `count` equal parts of it."""
    origin, size = batch_size_of(place, script, call)
    if size % count:
        raise refusal(origin.script, origin.value, f"a batch of {size} cannot be divided by {count}")
    return origin, size // count


def batch_size_of(place: Place, script: Script, call: cst.Call) -> tuple[WhereSet, int]:
    """Where a loader's batch size is set, and its value."""
    arg = batch_argument(place, script, call)
    size = literal(arg.value)
    if isinstance(size, int):
        return WhereSet(arg.value, "constant", arg.script), size
    origin = where_set(arg.script, arg.value, place.program, changed=True)
    size = literal(origin.value) if origin is not None else ...
    if origin is None or not isinstance(size, int):
        raise refusal(script, call, f"batch_size={arg.script.code(arg.value)} is set somewhere else")
    return origin, size


def batch_argument(place: Place, script: Script, call: cst.Call) -> Argument:
    """What a loader is passed as its batch size, itself or through a dictionary. Raises NoEdit where that is not one value."""
    arguments = Arguments(place.program, script, call, {"batch_size": 1})
    arg = arguments.find("batch_size")
    if arg is None and not arguments.hidden:
        raise refusal(
            script, call, "the loader takes no batch_size (a batch sampler, or batches as they are)"
        )
    if arg is None or arguments.times("batch_size") > 1:
        what = arguments.hidden or f"{arguments.times('batch_size')} places"
        raise refusal(script, call, f"batch_size comes from {what}")
    return arg


def sharing(place: Place, call: cst.Call, origin: WhereSet) -> list[tuple[Script, cst.Call]]:
    """The other loaders of the program that take their batch size from the same place."""
    return [
        (script, other)
        for script, other in place.program.dataloaders
        if other is not call
        and (arg := argument(other, "batch_size", 1)) is not None
        and (there := where_set(script, arg.value, place.program)) is not None
        and there.value is origin.value
    ]


def used_otherwise(place: Place, origin: WhereSet) -> bool:
    """Whether a batch size is more than a constant of one script that its loaders take."""
    script = origin.script
    names = assigned_names(script.statement_of(origin.value))
    if origin.how != "constant" or len(names) != 1 or names[0] is None or place.program.importers(script):
        return True
    loaders = [call for where, call in place.program.dataloaders if where is script]
    reads = (n for n in script.variables(names[0]) if not isinstance(script.parent(n), cst.AssignTarget))
    return not all(any(script.within(n, call) for call in loaders) for n in reads)


def own_size(script: Script, call: cst.Call, origin: WhereSet) -> WhereSet:
    """The batch size of a loader alone, in place of the name that others take as well."""
    arg = argument(call, "batch_size", 1)
    return replace(origin, value=arg.value, script=script) if arg is not None else origin


def resize(origin: WhereSet, size: int) -> Change:
    """Another batch size, of which nothing may be computed: see `refuse_divided`."""
    edits = set_origin(origin, source_text(size), "batch-size")
    notes = (f"a command line that passes {origin.flag} decides itself",) if origin.flag else ()
    return Change(origin.script, tuple(edits), origin.script.line(origin.value), notes=notes)


def refuse_divided(origin: WhereSet, program: Project) -> None:
    """Raises NoEdit where other values are computed from one, or another is put in its place."""
    if origin.changed is not None:
        raise refusal(*origin.changed, f"the batch size becomes {origin.changed[0].code(origin.changed[1])}")
    if (user := division_of(origin, program)) is not None:
        raise refusal(*user, f"other values are computed from {user[0].code(user[1])}")
