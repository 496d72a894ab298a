"""`dataloader-args`: workers, pinning and prefetching of a DataLoader as one consistent set."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import libcst as cst

from trace_doctor.fixes.codemods import codemod
from trace_doctor.fixes.configured import configured
from trace_doctor.fixes.literals import source_text
from trace_doctor.model.parameters import DataLoaderArgs
from trace_doctor.program.dataflow import method_of
from trace_doctor.program.edits import Change, Gathered, NoEdit, Option, sketched, together
from trace_doctor.program.place import Place, already, only, refusal
from trace_doctor.program.project import Project
from trace_doctor.program.queries.arguments import Argument, Arguments, refuse_explained, set_value
from trace_doctor.program.queries.dataloaders import (
    Loader,
    evaluation_loaders,
    is_made_anew,
    loaders_on_line,
    not_picklable,
    refuse_batches_on_gpu,
    refuse_open_files,
    training_loaders,
)
from trace_doctor.program.queries.values import WhereSet, set_origin, where_set
from trace_doctor.program.script import Script, argument, literal, method_name
from trace_doctor.program.versions import accepts

_POSITIONS = {"num_workers": 5, "pin_memory": 7}
_NO_PREFETCHING = "torch.utils.data.DataLoader(prefetch_factor=None)"
_OF_WORKERS = {"persistent_workers": "False", "prefetch_factor": "None"}
"""what a loader without workers takes"""
_ORDER = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor")
_MAP_STYLE = (
    "torch.utils.data.TensorDataset",
    "torch.utils.data.Subset",
    "torch.utils.data.ConcatDataset",
    "torch.utils.data.random_split",
    "torch.utils.data.Dataset",
)
_SHARDING = (
    "the dataset is an IterableDataset: workers would each deliver all of it unless __iter__ takes its share by "
    "torch.utils.data.get_worker_info() (itertools.islice(it, info.id, None, info.num_workers))"
)
_ANEW = "the loader is made anew for each epoch, and its workers with it: make it once, before the epochs"
_SPAWNED = "Windows, macOS, Python 3.14 and later"
_SPAWN = (
    f'where workers are spawned ({_SPAWNED}) the script needs `if __name__ == "__main__":` '
    "and a dataset and collate_fn that can be pickled"
)


@codemod(
    "dataloader-args",
    DataLoaderArgs,
    adds="num_workers pin_memory persistent_workers prefetch_factor True False None",
    words=("DataLoader",),
    elsewhere=True,
)
def dataloader_args(place: Place, params: DataLoaderArgs) -> Change:
    """Sets num_workers, pin_memory, persistent_workers and prefetch_factor of the training loader together."""
    values = params.set_values()
    settings = {
        name: values[name] for name in _ORDER if values.get(name) or (params.exact and name in values)
    }
    loaders = loaders_on_line(place) or training_loaders(place)
    script, call = only(
        loaders,
        "construct a DataLoader that feeds training",
        "no DataLoader(...) was found that the loader of the capture can be",
    )
    if "persistent_workers" in settings and is_made_anew(place.program, script, call):
        if len(settings) == 1:
            raise refusal(script, call, _ANEW)
        del settings["persistent_workers"]
    change = _Loader(place, script, call, exact=params.exact).set_arguments(settings)
    if set(settings) != {"persistent_workers"}:
        return change
    return _in_evaluation(place, (script, call), change, params)


def _in_evaluation(place: Place, training: Loader, change: Change, params: DataLoaderArgs) -> Change:
    """The change with that of the loaders which evaluate: made where the capture has their restarts, too, and the file is the same,
    else named."""
    for script, call in evaluation_loaders(place, training):
        if is_made_anew(place.program, script, call):
            continue
        try:
            also = _Loader(place, script, call, exact=False).set_arguments({"persistent_workers": True})
        except NoEdit:
            continue  # it has no workers, or they persist
        if params.evaluation and script is training[0]:
            change = together(change, also)
        else:
            line = f"{script.name}:{script.line(call)}"
            note = f"the loader at {line} restarts its workers as well: set persistent_workers there, too"
            change = replace(change, notes=(*change.notes, note))
    return change


class _Loader:
    """The arguments of one DataLoader, and edits of them that belong together."""

    def __init__(self, place: Place, script: Script, call: cst.Call, *, exact: bool) -> None:
        self.project = project = place.program
        self.place = place
        self.script = script
        self.call = call
        self.exact = exact
        self.arguments = Arguments(project, *_inner(project, script, call), _POSITIONS)
        self.edits = Gathered()
        self.options: dict[str, Option] = {}
        """of the command line, by their names"""
        self.pins_by_choice = False
        """whether one of the dictionaries that a condition chooses from says something of pinning"""
        self.guard: str | None = None
        """an expression for the number of workers that a user may set to 0"""

    def set_arguments(self, settings: dict[str, Any]) -> Change:
        """`settings`: name -> value, workers first. Raises NoEdit where they are there, or what holds them cannot be seen."""
        script = self.script
        alternatives = self.arguments.alternatives()
        self.pins_by_choice = any(a.find("pin_memory") is not None for a in alternatives)
        for arguments in alternatives:
            self._refuse_hidden(arguments, settings)
            self._set(arguments, settings)
        if not self.edits.files and not self.options:
            raise already(script, self.call, "sets its workers and pinning already")
        names = {e.key.rpartition(":")[2] for _, edits in self.edits.files.values() for e in edits}
        names |= {"num_workers"} if self.options else set()
        if settings.get("num_workers") and not self.exact and names <= {*_ORDER[1:]}:
            raise already(script, self.call, "has workers already, the captured loader none: what set that?")
        has_guard = any("__main__" in s.text for s in self.project.scripts_with("__main__", "DataLoader"))
        if names != {"pin_memory"} and not has_guard:
            self.edits.notes.append(_SPAWN)
        local = not_picklable(self.project, script, self.call) if names != {"pin_memory"} else None
        if local is not None:
            where = f"{local[0].name}:{local[0].line(local[1])}"
            kind = "lambda" if isinstance(local[1], cst.Lambda) else "local definition"
            self.edits.notes.append(
                f"the {kind} at {where} cannot be pickled, which spawned workers need ({_SPAWNED})"
            )
        change = self._change()
        doubt = _may_repeat(self.project, script, self.call) if settings.get("num_workers") else ""
        if doubt == _SHARDING:
            raise refusal(script, self.call, doubt)
        with sketched(change):
            if doubt:
                raise refusal(script, self.call, doubt)
            if names - {*_ORDER[1:]}:  # the count, where it is passed or where it comes from
                refuse_open_files(self.project, script, self.call)
            refuse_batches_on_gpu(self.project, script, self.call)
            refuse_explained(script, self.call, names & set(_ORDER))
        return change

    def _change(self) -> Change:
        script, line, options = self.script, self.script.line(self.call), tuple(self.options.values())
        if not self.edits.files:
            return Change(script, (), line, notes=tuple(self.edits.notes), options=options)
        file, edits = self.edits.files.get(script.name) or next(iter(self.edits.files.values()))
        line = line if file.name == script.name else file.line_of(edits[0].start)
        return replace(self.edits.change(file, line, None), options=options)

    def _set(self, arguments: Arguments, settings: dict[str, Any]) -> None:
        workers = arguments.find("num_workers")
        count = self._set_workers(workers, settings)
        additions = {"num_workers": source_text(count)} if workers is None and count else {}
        for name in _ORDER[1:]:
            there = arguments.find(name)
            if self.exact and workers is not None and not count and there is not None and name in _OF_WORKERS:
                if literal(there.value) not in (None, False, ...):
                    self.edits.keep(there.script, [set_value(there, _OF_WORKERS[name])])
                continue
            if name not in settings or (name != "pin_memory" and not count):
                continue
            if name == "pin_memory" and there is None and self.pins_by_choice:
                continue  # that choice is for runs without a GPU
            if name == "prefetch_factor" and self.guard and not accepts(self.place.torch, _NO_PREFETCHING):
                continue
            value = self._argument_text(name, settings[name])
            if there is None:
                additions[name] = value
            elif self.exact and name == "prefetch_factor":
                self._set_number(there, int(settings[name]), value)
            elif literal(there.value) in (None, False):
                self.edits.keep(there.script, [set_value(there, value)])
        if additions:
            self.edits.keep(*arguments.add(workers, additions))

    def _refuse_hidden(self, arguments: Arguments, settings: dict[str, Any]) -> None:
        script, call, hidden = self.script, self.call, arguments.hidden
        if hidden:
            raise refusal(script, call, f"the loader's arguments come from {hidden}: set them there")
        for name in settings:
            if (times := arguments.times(name)) > 1:
                raise refusal(script, call, f"{name} is set in {times} places")

    def _set_workers(self, workers: Argument | None, settings: dict[str, Any]) -> int:
        """Sets the worker count where it is set. Returns the count afterwards."""
        target = int(settings.get("num_workers") or 0)
        if workers is None:
            return target
        if literal(workers.value) is ...:
            self.guard = workers.script.code(workers.value)
        if "num_workers" not in settings and self.guard:
            return self._current(workers)
        return self._set_number(workers, target, source_text(target))

    def _current(self, argument: Argument) -> int:
        """A number that the script itself sets; 1 where somebody else does, or may: what depends on it is written with a guard."""
        origin = where_set(argument.script, argument.value, self.project)
        value = literal(argument.value if origin is None else origin.value)
        if not isinstance(value, int) or (origin is not None and origin.flag and not value):
            return 1
        return value

    def _set_number(self, argument: Argument, target: int, text: str) -> int:
        """Sets a number where it comes from: raises it, or where it is to be exact sets it. Returns what it is afterwards."""
        script, name, value = argument.script, argument.name, literal(argument.value)
        if isinstance(value, int) or (value is None and name == "prefetch_factor"):
            goal = target if self.exact else max(value or 0, target)
            if value != goal:
                self.edits.keep(script, [set_value(argument, text)])
            return goal
        origin = where_set(script, argument.value, self.project, changed=not self.exact)
        if origin is None:
            return self._set_configured(argument, target)
        current = literal(origin.value)
        if not isinstance(current, int):
            raise refusal(script, argument.value, f"{name} comes from {origin.script.code(origin.value)}")
        goal = target if self.exact else max(current, target)
        if self.exact and origin.flag:
            self.options[origin.flag] = Option(origin.flag, source_text(goal), origin.flags)
        elif current != goal:
            line = origin.script.line_text(origin.script.line(origin.value))
            if re.search(rf"\b{current}\b", line.partition("#")[2]):
                raise refusal(origin.script, origin.value, f"a comment there says why {name} is {current}")
            self.edits.keep(origin.script, set_origin(origin, source_text(goal), "default"))
            where = f"{origin.script.name}:{origin.script.line(origin.value)}"
            flag = f"; a command line that passes {origin.flag} decides itself" if origin.flag else ""
            self.edits.notes.append(f"{name} is set in {where}{flag}{_computed(origin)}")
        return goal

    def _set_configured(self, argument: Argument, target: int) -> int:
        """The same for a key of a configuration file."""
        key = configured(self.place, argument.script, argument.value)
        if key is None:
            if not target:
                return 0
            script, value = argument.script, argument.value
            origins = self.project.of(script, value)
            computed = [
                script.code(v) for script, v in origins if isinstance(v, cst.Call | cst.BinaryOperation)
            ]
            if computed:
                raise refusal(
                    script, value, f"{argument.name} is computed when the script runs: {computed[0]}"
                )
            raise refusal(script, value, f"{argument.name}={script.code(value)} is set somewhere else")
        goal = target if self.exact else max(key.value, target)
        if edits := key.edits(goal):
            self.edits.keep(key.document.file, edits)
            self.edits.notes.append(f"{argument.name} is set in {key.document.file.name}")
        return goal

    def _argument_text(self, name: str, value: Any) -> str:
        """The argument's text; where the worker count is a variable that a user may set to 0, it holds for 0 as well."""
        if self.guard is None or name == "pin_memory":
            return source_text(value)
        some = f"{self.guard} > 0"
        return some if name == "persistent_workers" else f"{source_text(value)} if {some} else None"


def _computed(origin: WhereSet) -> str:
    """What the program makes of the value before a loader gets it."""
    if origin.changed is None:
        return ""
    script, value = origin.changed
    return f"; {script.name}:{script.line(value)} makes {script.code(value)} of it"


def _inner(project: Project, script: Script, call: cst.Call) -> tuple[Script, cst.Call]:
    """The call that takes DataLoader's arguments: of a subclass that does not pass its keywords on, its `super().__init__`."""
    subclass = project.class_by_name(script, call.func)
    for where, owner in project.lineage(*subclass) if subclass is not None else ():
        init = method_of(owner, "__init__")
        if init is None or init.params.star_kwarg is not None:
            continue
        for init_call in where.all(cst.Call, within=init):
            if method_name(init_call) == "__init__":
                return where, init_call
    return script, call


def _may_repeat(project: Project, script: Script, call: cst.Call) -> str:
    """Why workers would, or may, multiply the data of an IterableDataset; empty where the dataset is known to be map-style."""
    for name, position in (("shuffle", 2), ("sampler", 3), ("batch_sampler", 4)):
        arg = argument(call, name, position)
        value = literal(arg.value) if arg is not None else None
        if value not in (None, False) and (value is not ... or name != "shuffle"):
            return ""  # an IterableDataset raises with these
    dataset = argument(call, "dataset", 0)
    if dataset is None:
        return "the loader's dataset is not visible"
    for where, origin in project.of(script, dataset.value):
        style = _style(project, where, origin)
        if style == "iterable":
            return _SHARDING
        if style == "unknown":
            return f"cannot see whether {where.code(origin)} is an IterableDataset, whose data workers would repeat"
    return ""


def _style(project: Project, script: Script, origin: cst.BaseExpression) -> str:
    """map | iterable | unknown"""
    if isinstance(origin, cst.List | cst.ListComp | cst.Tuple):
        return "map"
    if not isinstance(origin, cst.Call):
        return "unknown"
    name = script.callee(origin)
    if not name or project.definition(script, origin.func) is not None:
        return _local_style(project, script, origin)
    if name == "datasets.load_dataset":
        streaming = argument(origin, "streaming")
        return "iterable" if streaming is not None and literal(streaming.value) is not False else "map"
    if "Iterable" in name or name.startswith("webdataset."):
        return "iterable"
    map_style = name in (*_MAP_STYLE, "range") or name.startswith("torchvision.datasets.")
    return "map" if map_style else "unknown"


def _local_style(project: Project, script: Script, origin: cst.Call) -> str:
    owner = project.class_by_name(script, origin.func)
    if owner is None:
        return "unknown"
    lineage, bases = project.lineage(*owner), project.bases(*owner)
    if any("Iterable" in base for base in bases):
        return "iterable"
    methods = {m.name.value for where, owner in lineage for m in where.all(cst.FunctionDef, within=owner)}
    of_maps = any(b.startswith(("torchvision.datasets.", *_MAP_STYLE)) for b in bases)
    return "map" if "__getitem__" in methods or of_maps else "unknown"
