"""A fix in the terms of the framework that runs the training loop: an argument of its Trainer, an option of the command
line that starts it, or nothing at all, because it does so by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import libcst as cst

from trace_doctor.fixes.arguments import Arguments, set_value
from trace_doctor.fixes.codemods import Place, candidate, only
from trace_doctor.fixes.edits import Change, Edit, NoEdit, remove_argument
from trace_doctor.fixes.feeding import training_loops
from trace_doctor.fixes.frameworks import ACCELERATE, LIGHTNING, MANAGED, TRAINING_ARGUMENTS, Setting, wishes
from trace_doctor.fixes.launchers import pass_options
from trace_doctor.fixes.values import where_set
from trace_doctor.loaders.script import Script, TextFile, literal

Call = tuple[Script, cst.Call]
_LIGHTNING = frozenset(
    f"{root}.{part}"
    for root in ("lightning", "lightning.pytorch", "pytorch_lightning")
    for part in ("Trainer", "trainer.Trainer", "trainer.trainer.Trainer")
)
_FABRIC = ("lightning.Fabric", "lightning.fabric.Fabric", "lightning_fabric.Fabric")
_PARSERS = (
    "parse_args_into_dataclasses",
    "parse_args_and_config",
    "parse_json_file",
    "parse_yaml_file",
    "parse_dict",
)
_PER_STEP = ("every-n-guard", "remove-call")
"""edits of the user's own line, wherever the loop is: a framework's setting only where there is no such line"""


def settings_first(codemod: str) -> bool:
    """Whether a framework's setting replaces what a codemod does in a plain loop."""
    return codemod not in _PER_STEP


def in_framework(place: Place, codemod: str, params: Mapping[str, Any]) -> Change | None:
    """The change in the framework's terms; None where the script runs its own loop or the framework has no word for it.

    Raises NoEdit where the framework does it by itself, or where it has to be told on the command line.
    """
    found = _framework(place)
    if found is None:
        return None
    name, calls = found
    managed = MANAGED.get(codemod, {}).get(name)
    if managed is not None and not _by_hand(place):
        raise NoEdit("display", managed, framework=name)
    wanted = wishes(codemod, params)
    if not wanted:
        return None
    if name == "transformers":
        return _training_arguments(place, calls, wanted)
    table = ACCELERATE if name == "accelerate" else LIGHTNING
    if not set(wanted) <= set(table):
        return None
    what = "Accelerator" if name == "accelerate" else "Trainer"
    script, call = only(calls, f"construct the {what}", "")
    return _set(place, script, call, name, table, wanted)


# ---------------------------------------------------------------------- which framework


def _framework(place: Place) -> tuple[str, list[Call]] | None:
    """The framework that runs the loop which a place means, with the calls that construct its Trainer."""
    trainers: dict[str, list[Call]] = {}
    for script in place.program.mentioning("Trainer", "Accelerator", "Fabric", "deepspeed"):
        for call in script.all(cst.Call):
            name = _kind(place, script, call)
            if name is not None:
                trainers.setdefault(name, []).append((script, call))
    for name in ("transformers", "lightning"):
        if name in trainers and (_starts(place) or not _own_loops(place)):
            return name, trainers[name]
    if "accelerate" in trainers:
        return "accelerate", trainers["accelerate"]
    if "fabric" in trainers:
        return "fabric", trainers["fabric"]
    return ("deepspeed", trainers["deepspeed"]) if "deepspeed" in trainers else None


def _kind(place: Place, script: Script, call: cst.Call) -> str | None:
    name = script.callee(call)
    if name is None or name.startswith("."):
        found = place.program.definition(script, call.func)
        if found is None or not isinstance(found[1], cst.ClassDef):
            return None
        names = place.program.bases(found[0], found[1])
    else:
        names = {name}
    if any(
        n.split(".")[0] in ("transformers", "trl", "sentence_transformers") and n.endswith("Trainer")
        for n in names
    ):
        return "transformers"
    if names & _LIGHTNING:
        return "lightning"
    if names & set(_FABRIC):
        return "fabric"
    return {"accelerate.Accelerator": "accelerate", "deepspeed.initialize": "deepspeed"}.get(name or "")


def _starts(place: Place) -> bool:
    """Whether the captured function hands over to a Trainer: `trainer.train()`, `trainer.fit(model)`."""
    if place.script is None:
        return False
    script, wanted = place.script, (place.function or "").split(".")[-1]
    for call in script.all(cst.Call):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in ("train", "fit"):
            function = script.function_of(call)
            first, last = script.lines(call)
            here = place.line is not None and first <= place.line <= last
            if here or (place.line is None and (function.name.value if function else "<module>") == wanted):
                receivers = place.program.of(script, call.func.value)
                if any(isinstance(r, cst.Call) and _kind(place, s, r) for s, r in receivers):
                    return True
    return False


def _own_loops(place: Place) -> bool:
    return any(True for s in place.program.mentioning("backward(", ".step(") for _ in training_loops(s))


def _by_hand(place: Place) -> bool:
    """Lightning's manual optimization, or gradients that the script clears itself."""
    return bool(place.program.mentioning("automatic_optimization", "zero_grad("))


# ---------------------------------------------------------------------- arguments of a class


def _set(
    place: Place,
    script: Script,
    call: cst.Call,
    framework: str,
    table: Mapping[str, Setting],
    wanted: Mapping[str, str],
) -> Change:
    """Sets what is wanted as arguments of a construction. Raises NoEdit where they are there, or cannot be seen."""
    arguments = Arguments(place.program, script, call, {})
    here = [candidate(script, call)]
    if arguments.hidden:
        raise NoEdit(
            "display",
            f"the arguments come from {arguments.hidden}: set them there",
            here,
            framework=framework,
        )
    edits: dict[str, tuple[TextFile, list[Edit]]] = {}
    added: dict[str, str] = {}
    notes: list[str] = []
    for wish, value in wanted.items():
        setting = table[wish]
        if not _known(place, framework, setting):
            notes.append(_needs(framework, setting, value))
            continue
        for other in setting.excludes:
            there = arguments.find(other)
            if there is not None and literal(there.value) not in (None, False):
                raise NoEdit(
                    "display", f"{other} is set, which excludes {setting.name}", here, framework=framework
                )
        text = setting.value.format(value)
        given = arguments.find(setting.name)
        if given is None:
            added[setting.name] = text
            continue
        new = _changed(place, given.script, given.value, wish, text)
        if new is None:
            continue
        target, edit = new
        edits.setdefault(target.name, (target, []))[1].append(edit or set_value(given, text))
    _consistent(arguments, added, wanted)
    if added:
        where, more = arguments.add(None, added)
        edits.setdefault(where.name, (where, []))[1].extend(more)
    if not edits:
        raise NoEdit("already", f"{script.name}:{script.line(call)} sets this already", framework=framework)
    files = sorted(((f, tuple(e)) for f, e in edits.values()), key=lambda f: f[0].name != script.name)
    main = files[0]
    line = script.line(call) if main[0].name == script.name else main[0].line_of(main[1][0].start)
    return Change(main[0], main[1], line, "unsafe", tuple(notes), framework, more=tuple(files[1:]))


def _changed(
    place: Place, script: Script, value: cst.BaseExpression, wish: str, text: str
) -> tuple[TextFile, Edit | None] | None:
    """Where an argument that is there has to change; None where it is as wished, or better. The edit is None for the
    value in the call itself."""
    now, wished = literal(value), _literal(text)
    if now is ...:
        origin = where_set(script, value, place.program)
        if origin is None:
            raise NoEdit("display", f"{script.code(value)} is set somewhere else", [candidate(script, value)])
        now = literal(origin.value)
        if _as_wished(wish, now, wished):
            return None
        start, end = origin.script.outer_span(origin.value)
        return origin.script, Edit(start, end, text, f"default:{start}", text)
    return None if _as_wished(wish, now, wished) else (script, None)


def _literal(text: str) -> object:
    return literal(cst.parse_expression(text))


def _as_wished(wish: str, now: object, wished: object) -> bool:
    if (
        wish in ("num_workers", "prefetch_factor", "log_every")
        and isinstance(now, int)
        and isinstance(wished, int)
    ):
        return now >= wished
    if wish in ("compile_mode", "compile_backend"):
        return now is not None
    return now == wished


def _consistent(arguments: Arguments, added: dict[str, str], wanted: Mapping[str, str]) -> None:
    """What is the default already, or raises without workers, is left out."""
    if wanted.get("pin_memory") == "True":
        added.pop("dataloader_pin_memory", None)
    workers = arguments.find("dataloader_num_workers")
    if workers is None and "dataloader_num_workers" not in added:
        added.pop("dataloader_prefetch_factor", None)
        added.pop("dataloader_persistent_workers", None)


def _known(place: Place, framework: str, setting: Setting) -> bool:
    version = place.packages.get(framework)
    return setting.since is None or (version is not None and version >= setting.since)


def _needs(framework: str, setting: Setting, value: str) -> str:
    since = ".".join(map(str, setting.since or ()))
    return f"with {framework} {since} or newer also {setting.name}={setting.value.format(value)}"


# ---------------------------------------------------------------------- Hugging Face Trainer


def _training_arguments(place: Place, trainers: list[Call], wanted: dict[str, str]) -> Change | None:
    if "empty_cache" in wanted:
        return _no_empty_cache(place, trainers)
    made: list[Call] = []
    parsed: list[Call] = []
    for script, trainer in trainers:
        given = Arguments(place.program, script, trainer, {"args": 1}).find("args")
        for where, origin in place.program.of(given.script, given.value) if given is not None else ():
            if isinstance(origin, cst.Call) and _is_parser(origin):
                parsed.append((where, origin))
            elif isinstance(origin, cst.Call) and all(c is not origin for _, c in made):
                made.append((where, origin))
    if made and not parsed:
        script, call = only(made, "construct the Trainer's arguments", "")
        if "log_every" in wanted and Arguments(place.program, script, call, {}).find("logging_steps") is None:
            return None  # every 500 steps by default
        if "accumulate" in wanted:
            wanted = _accumulated(place, script, call, int(wanted["accumulate"]))
        return _set(place, script, call, "transformers", TRAINING_ARGUMENTS, wanted)
    if parsed and "log_every" not in wanted:
        return _on_command_line(place, parsed[0], wanted)
    return None


def _is_parser(call: cst.Call) -> bool:
    return isinstance(call.func, cst.Attribute) and call.func.attr.value in _PARSERS


def _accumulated(place: Place, script: Script, call: cst.Call, steps: int) -> dict[str, str]:
    """The same number of samples per optimizer step, in `steps` times as many passes."""
    arguments = Arguments(place.program, script, call, {})
    batch, now = arguments.find("per_device_train_batch_size"), arguments.find("gradient_accumulation_steps")
    size = literal(batch.value) if batch is not None else 8
    passes = literal(now.value) if now is not None else 1
    if not isinstance(size, int) or passes != 1 or size % steps:
        raise NoEdit(
            "display",
            f"divide per_device_train_batch_size by {steps} and multiply gradient_accumulation_steps by it",
            [candidate(script, call)],
            framework="transformers",
        )
    return {"batch_size": str(size // steps), "accumulate": str(steps)}


def _no_empty_cache(place: Place, trainers: list[Call]) -> Change | None:
    """Takes `torch_empty_cache_steps` out of the Trainer's arguments."""
    for script in place.program.mentioning("torch_empty_cache_steps"):
        for call in script.all(cst.Call):
            for arg in call.args:
                if arg.keyword is not None and arg.keyword.value == "torch_empty_cache_steps":
                    if literal(arg.value) is None:
                        raise NoEdit(
                            "already",
                            f"{script.name}:{script.line(call)} empties no cache",
                            framework="transformers",
                        )
                    edit = remove_argument(script, call, arg)
                    return Change(script, (edit,), script.line(arg), framework="transformers")
    return None


def _on_command_line(place: Place, parsed: Call, wanted: Mapping[str, str]) -> Change:
    """The Trainer's arguments come from a parser: options of the launch script, else a command to type."""
    options: dict[str, str] = {}
    late: list[str] = []
    for wish, value in wanted.items():
        setting = TRAINING_ARGUMENTS[wish]
        if wish == "pin_memory":
            continue  # pinned by default
        if not _known(place, "transformers", setting):
            late.append(_needs("transformers", setting, value))
            continue
        options[setting.name] = setting.value.format(value).strip('"')
    if not options:
        raise NoEdit(
            "display", "; ".join(late) or "the Trainer does this by default", framework="transformers"
        )
    return pass_options(place, parsed, options, late)
