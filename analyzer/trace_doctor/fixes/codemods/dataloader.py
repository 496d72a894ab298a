"""`dataloader-args`: workers, pinning and prefetching of a DataLoader as one consistent set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import libcst as cst

from trace_doctor.fixes.codemods import Place, candidate, codemod, only, origins
from trace_doctor.fixes.edits import Change, Edit, NoEdit, add_arguments, set_argument
from trace_doctor.fixes.loops import loops, trains
from trace_doctor.fixes.values import WhereSet, where_set
from trace_doctor.loaders.script import Script, argument, literal

_POSITIONS = {"num_workers": 5, "pin_memory": 7}
_ORDER = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor")
_MAP_STYLE = (
    "torch.utils.data.TensorDataset",
    "torch.utils.data.Subset",
    "torch.utils.data.ConcatDataset",
    "torch.utils.data.random_split",
    "torch.utils.data.Dataset",
)
_ARGUMENTS_CLASSES = ("transformers.TrainingArguments", "transformers.Seq2SeqTrainingArguments")
_SHARDING = (
    "the dataset is an IterableDataset: workers would each deliver all of it unless __iter__ takes its share by "
    "torch.utils.data.get_worker_info() (itertools.islice(it, info.id, None, info.num_workers))"
)
_SPAWN = (
    'where workers are spawned (Windows, macOS, Python 3.14 and later) the script needs `if __name__ == "__main__":` '
    "and a dataset and collate_fn that can be pickled"
)


@codemod("dataloader-args", words=("DataLoader", "TrainingArguments"), elsewhere=True)
def dataloader_args(place: Place, params: Mapping[str, Any]) -> Change:
    """Sets num_workers, pin_memory, persistent_workers and prefetch_factor of the training loader together."""
    wanted = {name: params[name] for name in _ORDER if params.get(name)}
    calls = loaders_on_line(place) or training_loaders(place)
    if calls:
        script, call = only(calls, "construct a DataLoader that feeds training", "")
        return _edit_loader(script, call, wanted)
    return _edit_training_arguments(place, wanted)


# ---------------------------------------------------------------------- which loader


def loaders_on_line(place: Place) -> list[tuple[Script, cst.Call]]:
    """Loaders constructed, iterated or drawn from on the line that the capture names."""
    script = place.script
    if script is None or place.line is None:
        return []
    tracked = origins(script)
    for statement in script.statements_on(place.line):
        within = statement.iter if isinstance(statement, cst.For) else statement
        names = [
            *script.all(cst.Call, within),
            *script.all(cst.Name, within),
            *script.all(cst.Attribute, within),
        ]
        found: list[tuple[Script, cst.Call]] = []
        for node in names:
            for origin in tracked.of(node):
                if tracked.is_dataloader(origin) and all(c is not origin for _, c in found):
                    assert isinstance(origin, cst.Call)
                    found.append((script, origin))
        if found:
            return found
    return []


def training_loaders(place: Place) -> list[tuple[Script, cst.Call]]:
    """All loaders; of several, those that feed a loop which trains."""
    found = [
        (script, call)
        for script in place.scripts
        for call in script.all(cst.Call)
        if origins(script).is_dataloader(call)
    ]
    if len(found) <= 1:
        return found
    fed = [
        (script, call)
        for script in place.scripts
        for loop in loops(script)
        if isinstance(loop, cst.For) and trains(script, loop)
        for call in origins(script).of(loop.iter)
        if isinstance(call, cst.Call) and origins(script).is_dataloader(call)
    ]
    hooks = [
        (s, c) for s, c in found if (f := s.function_of(c)) is not None and f.name.value == "train_dataloader"
    ]
    narrowed = {id(call): (script, call) for script, call in fed or hooks}
    return list(narrowed.values()) or found


# ---------------------------------------------------------------------- the edit


def _edit_loader(script: Script, call: cst.Call, wanted: dict[str, Any]) -> Change:
    line = script.line(call)
    if wanted.get("num_workers"):
        _refuse_iterable(script, call)
    workers = argument(call, "num_workers", _POSITIONS["num_workers"])
    splat = next((a for a in call.args if a.star == "**"), None)
    if any(a.star == "*" for a in call.args):
        raise NoEdit(
            "display", "the loader's arguments come from a sequence (*args)", [candidate(script, call)]
        )
    if splat is not None:
        _refuse_unknown_splat(script, call, splat, wanted)
    edits: list[Edit] = []
    notes: list[str] = []
    count, guard = _set_workers(script, call, workers, wanted, edits, notes)
    added: dict[str, str] = {}
    for name in _ORDER[1:]:
        if name not in wanted or (name != "pin_memory" and not count):
            continue
        value = _guarded(name, wanted[name], guard)
        there = argument(call, name, _POSITIONS.get(name))
        if there is None:
            added[name] = value
        elif literal(there.value) in (None, False):
            edits.append(set_argument(script, call, there, value))
    if workers is None and count:
        added = {"num_workers": str(count), **added}
    edits += add_arguments(script, call, added)
    if not edits:
        raise NoEdit("already", f"{script.name}:{line} sets its workers and pinning already")
    if any(e.key.endswith("num_workers") or "default" in e.key for e in edits) and not _guarded_main(script):
        notes.append(_SPAWN)
    only_pinning = all(e.key.endswith(":pin_memory") for e in edits)
    return Change(script, tuple(edits), line, "safe" if only_pinning else "unsafe", tuple(notes))


def _set_workers(
    script: Script,
    call: cst.Call,
    workers: cst.Arg | None,
    wanted: dict[str, Any],
    edits: list[Edit],
    notes: list[str],
) -> tuple[int, str | None]:
    """Raises the worker count where it is set. Returns (count afterwards, expression that may still be zero)."""
    target = int(wanted.get("num_workers") or 0)
    if workers is None:
        return target, None
    value = literal(workers.value)
    if isinstance(value, int):
        if value < target:
            edits.append(set_argument(script, call, workers, str(target)))
        return max(value, target), None
    origin = where_set(script, workers.value)
    if origin is None:
        if not target:
            return 0, None
        raise NoEdit(
            "display",
            f"num_workers={script.code(workers.value)} is set somewhere else",
            [candidate(script, call)],
        )
    current = literal(origin.value)
    if not isinstance(current, int):
        raise NoEdit(
            "display", f"num_workers comes from {script.code(origin.value)}", [candidate(script, call)]
        )
    if current < target:
        edits.append(_edit_where_set(script, origin, target))
        notes.append(f"num_workers is set in {script.name}:{script.line(origin.value)}")
    return max(current, target), script.code(workers.value)


def _edit_where_set(script: Script, origin: WhereSet, target: int) -> Edit:
    start, end = script.outer_span(origin.value)
    return Edit(start, end, str(target), f"default:{start}", str(target))


def _guarded(name: str, value: Any, guard: str | None) -> str:
    """The argument's text; where the worker count is a variable that a user may set to 0, it holds for 0 as well."""
    if guard is None or name == "pin_memory":
        return repr(value)
    return f"{guard} > 0" if name == "persistent_workers" else f"{value!r} if {guard} > 0 else None"


def _refuse_iterable(script: Script, call: cst.Call) -> None:
    """Workers multiply the data of an IterableDataset: raises unless the dataset is known to be map-style."""
    for name, position in (("shuffle", 2), ("sampler", 3), ("batch_sampler", 4)):
        given = argument(call, name, position)
        if given is not None and literal(given.value) not in (None, False, ...):
            return  # an IterableDataset raises with these
        if given is not None and name != "shuffle" and literal(given.value) is ...:
            return
    dataset = argument(call, "dataset", 0)
    if dataset is None:
        raise NoEdit("display", "the loader's dataset is not visible", [candidate(script, call)])
    tracked = origins(script)
    for origin in tracked.of(dataset.value):
        style = _style(script, origin)
        if style == "iterable":
            raise NoEdit("display", _SHARDING, [candidate(script, call)])
        if style == "unknown":
            raise NoEdit(
                "display",
                f"cannot see whether {script.code(origin)} is an IterableDataset, whose data workers would repeat",
                [candidate(script, call)],
            )


def _style(script: Script, origin: cst.BaseExpression) -> str:
    """map | iterable | unknown"""
    if isinstance(origin, cst.List | cst.ListComp | cst.Tuple):
        return "map"
    if not isinstance(origin, cst.Call):
        return "unknown"
    name = script.callee(origin)
    if name is None:
        return _local_style(script, origin)
    if name == "datasets.load_dataset":
        streaming = argument(origin, "streaming")
        return "iterable" if streaming is not None and literal(streaming.value) is not False else "map"
    if "Iterable" in name or name.startswith("webdataset."):
        return "iterable"
    return (
        "map"
        if name in _MAP_STYLE or name.startswith("torchvision.datasets.") or name == "range"
        else "unknown"
    )


def _local_style(script: Script, origin: cst.Call) -> str:
    tracked = origins(script)
    owner = tracked.definition(origin.func)
    if not isinstance(owner, cst.ClassDef):
        return "unknown"
    bases = tracked.bases(owner)
    if any("Iterable" in base for base in bases):
        return "iterable"
    methods = {m.name.value for m in script.all(cst.FunctionDef, within=owner)}
    mapped = "__getitem__" in methods or any(
        b.startswith(("torchvision.datasets.", *_MAP_STYLE)) for b in bases
    )
    return "map" if mapped else "unknown"


def _refuse_unknown_splat(script: Script, call: cst.Call, splat: cst.Arg, wanted: dict[str, Any]) -> None:
    """`DataLoader(ds, **kwargs)`: adding an argument that kwargs holds as well would raise TypeError."""
    found = origins(script).of(splat.value)
    keys: set[Any] = set()
    for origin in found:
        if not isinstance(origin, cst.Dict) or any(
            isinstance(e, cst.StarredDictElement) for e in origin.elements
        ):
            keys.add(...)
            continue
        keys |= {literal(e.key) for e in origin.elements if isinstance(e, cst.DictElement)}
    name = script.code(splat.value)
    changed = (
        f"{name}[" in script.text or f"{name}.update" in script.text or f"{name}.setdefault" in script.text
    )
    if ... in keys or changed or keys & set(wanted):
        raise NoEdit(
            "display", f"the loader's arguments come from **{name}: set them there", [candidate(script, call)]
        )


def _guarded_main(script: Script) -> bool:
    return "__main__" in script.text


# ---------------------------------------------------------------------- Hugging Face Trainer


def _edit_training_arguments(place: Place, wanted: dict[str, Any]) -> Change:
    found = [(s, c) for s in place.scripts for c in s.all(cst.Call) if _is_arguments(s, c)]
    if not found and any("HfArgumentParser" in s.text for s in place.scripts):
        flags = " ".join(f"--dataloader_{name} {value}" for name, value in wanted.items())
        raise NoEdit("display", f"the arguments come from the command line (HfArgumentParser): add {flags}")
    script, call = only(
        found,
        "construct TrainingArguments",
        "no DataLoader(...) was found that the loader of the capture can be",
    )
    if any(a.star for a in call.args):
        raise NoEdit(
            "display", "TrainingArguments are built from *args or **kwargs", [candidate(script, call)]
        )
    edits: list[Edit] = []
    added: dict[str, str] = {}
    workers = argument(call, "dataloader_num_workers")
    now = literal(workers.value) if workers is not None else 0
    if not isinstance(now, int):
        raise NoEdit("display", "dataloader_num_workers is set somewhere else", [candidate(script, call)])
    for name, value in wanted.items():
        if name not in ("num_workers", "pin_memory") and not max(now, int(wanted.get("num_workers") or 0)):
            continue
        there = argument(call, f"dataloader_{name}")
        if (name == "num_workers" and now >= int(value)) or (name == "pin_memory" and there is None):
            continue  # pinned by default
        if there is None:
            added[f"dataloader_{name}"] = repr(value)
        elif literal(there.value) in (None, False, 0) or name == "num_workers":
            edits.append(set_argument(script, call, there, repr(value)))
    edits += add_arguments(script, call, added)
    if not edits:
        raise NoEdit("already", f"{script.name}:{script.line(call)} sets its workers and pinning already")
    return Change(script, tuple(edits), script.line(call), "unsafe", (_SPAWN,), framework="transformers")


def _is_arguments(script: Script, call: cst.Call) -> bool:
    name = script.callee(call)
    return name is not None and (name in _ARGUMENTS_CLASSES or name.endswith(".TrainingArguments"))
