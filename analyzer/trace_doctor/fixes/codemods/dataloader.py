"""`dataloader-args`: workers, pinning and prefetching of a DataLoader as one consistent set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import libcst as cst

from trace_doctor.fixes.codemods import codemod
from trace_doctor.fixes.literals import source_text
from trace_doctor.model.parameters import DataLoaderArgs
from trace_doctor.program.dataflow import method_of
from trace_doctor.program.edits import Change, Gathered, sketched
from trace_doctor.program.place import Place, already, only, refusal
from trace_doctor.program.project import Project
from trace_doctor.program.queries.arguments import Argument, Arguments, refuse_explained, set_value
from trace_doctor.program.queries.dataloaders import (
    loaders_on_line,
    not_picklable,
    refuse_batches_on_gpu,
    training_loaders,
)
from trace_doctor.program.queries.values import set_origin, where_set
from trace_doctor.program.script import Script, argument, literal, method_name
from trace_doctor.program.versions import accepts

_POSITIONS = {"num_workers": 5, "pin_memory": 7}
_NO_PREFETCHING = "torch.utils.data.DataLoader(prefetch_factor=None)"
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
_SPAWNED = "Windows, macOS, Python 3.14 and later"
_SPAWN = (
    f'where workers are spawned ({_SPAWNED}) the script needs `if __name__ == "__main__":` '
    "and a dataset and collate_fn that can be pickled"
)


@codemod(
    "dataloader-args",
    DataLoaderArgs,
    adds="num_workers pin_memory persistent_workers prefetch_factor True None",
    words=("DataLoader",),
    elsewhere=True,
)
def dataloader_args(place: Place, params: DataLoaderArgs) -> Change:
    """Sets num_workers, pin_memory, persistent_workers and prefetch_factor of the training loader together."""
    values = params.set_values()
    settings = {name: values[name] for name in _ORDER if values.get(name)}
    loaders = loaders_on_line(place) or training_loaders(place)
    script, call = only(
        loaders,
        "construct a DataLoader that feeds training",
        "no DataLoader(...) was found that the loader of the capture can be",
    )
    return _Loader(place, script, call).set_arguments(settings)


class _Loader:
    """The arguments of one DataLoader, and edits of them that belong together."""

    def __init__(self, place: Place, script: Script, call: cst.Call) -> None:
        self.project = project = place.program
        self.torch = place.torch
        self.script = script
        self.call = call
        self.arguments = Arguments(project, *_inner(project, script, call), _POSITIONS)
        self.edits = Gathered()
        self.guard: str | None = None
        """an expression for the number of workers that a user may set to 0"""

    def set_arguments(self, settings: dict[str, Any]) -> Change:
        """`settings`: name -> value, workers first. Raises NoEdit where they are there, or what holds them cannot be seen."""
        script = self.script
        self._refuse_hidden(settings)
        workers = self.arguments.find("num_workers")
        count = self._set_workers(workers, int(settings.get("num_workers") or 0))
        additions = {"num_workers": source_text(count)} if workers is None and count else {}
        for name in _ORDER[1:]:
            if name not in settings or (name != "pin_memory" and not count):
                continue
            if name == "prefetch_factor" and self.guard and not accepts(self.torch, _NO_PREFETCHING):
                continue
            there, value = self.arguments.find(name), self._argument_text(name, settings[name])
            if there is None:
                additions[name] = value
            elif literal(there.value) in (None, False):
                self.edits.keep(there.script, [set_value(there, value)])
        if additions:
            self.edits.keep(*self.arguments.add(workers, additions))
        if not self.edits.files:
            raise already(script, self.call, "sets its workers and pinning already")
        names = {e.key.rpartition(":")[2] for _, edits in self.edits.files.values() for e in edits}
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
        file, edits = self.edits.files.get(script.name) or next(iter(self.edits.files.values()))
        line = script.line(self.call) if file.name == script.name else file.line_of(edits[0].start)
        change = self.edits.change(file, line, None)
        if count > int(settings.get("num_workers") or 0) > 0:
            change = replace(change, title=f"Set {' and '.join(n for n in _ORDER if n in names)}")
        doubt = _may_repeat(self.project, script, self.call) if settings.get("num_workers") else ""
        if doubt == _SHARDING:
            raise refusal(script, self.call, doubt)
        with sketched(change):
            if doubt:
                raise refusal(script, self.call, doubt)
            refuse_batches_on_gpu(self.project, script, self.call)
            refuse_explained(script, self.call, names & set(_ORDER))
        return change

    def _refuse_hidden(self, settings: dict[str, Any]) -> None:
        script, call, hidden = self.script, self.call, self.arguments.hidden
        if hidden:
            raise refusal(script, call, f"the loader's arguments come from {hidden}: set them there")
        for name in settings:
            if (times := self.arguments.times(name)) > 1:
                raise refusal(script, call, f"{name} is set in {times} places")

    def _set_workers(self, workers: Argument | None, target: int) -> int:
        """Raises the worker count where it is set. Returns the count afterwards."""
        if workers is None:
            return target
        here, value = (workers.script, workers.value), literal(workers.value)
        if isinstance(value, int):
            if value < target:
                self.edits.keep(workers.script, [set_value(workers, source_text(target))])
            return max(value, target)
        origin, self.guard = where_set(*here, self.project), workers.script.code(workers.value)
        if origin is None:
            if not target:
                return 0
            raise refusal(*here, f"num_workers={self.guard} is set somewhere else")
        current = literal(origin.value)
        if not isinstance(current, int):
            raise refusal(*here, f"num_workers comes from {origin.script.code(origin.value)}")
        if current < target:
            self.edits.keep(origin.script, set_origin(origin, source_text(target), "default"))
            where = f"{origin.script.name}:{origin.script.line(origin.value)}"
            flag = f"; a command line that passes {origin.flag} decides itself" if origin.flag else ""
            self.edits.notes.append(f"num_workers is set in {where}{flag}")
        return max(current, target)

    def _argument_text(self, name: str, value: Any) -> str:
        """The argument's text; where the worker count is a variable that a user may set to 0, it holds for 0 as well."""
        if self.guard is None or name == "pin_memory":
            return source_text(value)
        some = f"{self.guard} > 0"
        return some if name == "persistent_workers" else f"{source_text(value)} if {some} else None"


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
