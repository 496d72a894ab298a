"""Accelerate: what its Accelerator is told in the script, and what `accelerate launch` reads from a configuration file.

An argument of the Accelerator wins over the file, and the command line wins over the file as well (accelerate 1.15.0,
commands/launch.py and accelerator.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from itertools import combinations
from typing import Any

import libcst as cst

from trace_doctor.fixes.batch_sizes import divided_batch
from trace_doctor.fixes.frameworks.deepspeed import find_config, in_agreement
from trace_doctor.fixes.frameworks.documents import OTHER, Document
from trace_doctor.fixes.frameworks.launchers import (
    CONFIG,
    config_files,
    documents,
    say_what_is_not_checked,
    starts,
)
from trace_doctor.fixes.frameworks.settings import Call, set_arguments
from trace_doctor.fixes.frameworks.trainers import ACCELERATE, DYNAMO, Setting
from trace_doctor.program.edits import Candidate, Change, NoEdit, change_of, together
from trace_doctor.program.place import Place, only, refusal
from trace_doctor.program.project import Project
from trace_doctor.program.queries.arguments import Arguments
from trace_doctor.program.queries.loops import method_calls
from trace_doctor.program.script import Script, literal

_ACCUMULATE = (
    "accelerator = Accelerator(gradient_accumulation_steps={steps})\n"
    "for batch in loader:   # batches of 1/{steps} of the size\n"
    "    with accelerator.accumulate(model):\n"
    "        loss = loss_fn(model(batch))\n"
    "        accelerator.backward(loss)\n"
    "        optimizer.step()\n"
    "        optimizer.zero_grad()"
)


def launch_config(place: Place, *, guess: bool = True) -> Document | None:
    """The configuration of `accelerate launch`: the one that the commands name, else (as a guess) the only one of the
    source folder. Raises NoEdit for several."""
    launches = starts(place)
    paths = sorted({path for c in launches if (path := c.option("config_file")) is not None})
    files = {f.name: f for path in paths for f in config_files(place, path)}
    configs = list(documents(files.values()))
    if not configs and guess and not launches:
        configs = [
            d for d in documents(place.program.files(*CONFIG)) if d.find("distributed_type") is not None
        ]
    if len(configs) > 1:
        if not guess:
            return None
        where = [Candidate.of(d.file, 1) for d in configs]
        raise NoEdit("ambiguous", f"{len(configs)} files can be Accelerate's configuration", where)
    return configs[0] if configs else None


def in_accelerator(place: Place, calls: list[Call], wishes: Mapping[str, str]) -> Change | None:
    """The change in Accelerate's terms; None where it has no word for what is wanted."""
    table = DYNAMO if "compile" in wishes and _needs_plugin(place, calls, wishes) else ACCELERATE
    if not set(wishes) <= set(table):
        return None
    if table is DYNAMO and "compile_backend" in wishes:
        wishes = {wish: value for wish, value in wishes.items() if wish != "compile"}
    calls = [c for c in calls if place.script is not None and c[0].name == place.script.name] or calls
    if not _alternatives(calls):
        calls = [only(calls, "construct the Accelerator", "")]
    if "accumulate" in wishes:
        _refuse_without_accumulate(place, calls[0], wishes["accumulate"])
    if not {"bf16", "fp16"}.isdisjoint(wishes):
        _refuse_other_precision(place, calls, scaled="fp16" in wishes)
    in_file = _in_file(place, calls[0], wishes) if len(calls) == 1 else None
    if in_file is not None:
        return in_file
    change = _in_each(place, calls, table, wishes)
    if "accumulate" in wishes:
        change = together(change, divided_batch(place, int(wishes["accumulate"])))
    return in_agreement(place, change, wishes)


def _alternatives(calls: list[Call]) -> bool:
    """Whether all calls stand in different branches of one condition and give their object the same name."""
    script = calls[0][0]
    statements = [script.statement_of(call) for other, call in calls if other.name == script.name]
    names = {script.code(t.target) for s in statements if isinstance(s, cst.Assign) for t in s.targets}
    if len(calls) < 2 or len(statements) < len(calls) or len(names) != 1:
        return False
    return all(_apart(script, a, b) for (_, a), (_, b) in combinations(calls, 2))


def _apart(script: Script, a: cst.Call, b: cst.Call) -> bool:
    """Whether only one of two calls happens: the nearest condition of both has one of them in its body."""
    for up in script.ancestors(a):
        if isinstance(up, cst.If | cst.IfExp) and script.within(b, up):
            return script.within(a, up.body) != script.within(b, up.body)
    return False


def _in_each(
    place: Place, calls: list[Call], table: Mapping[str, Setting], wishes: Mapping[str, str]
) -> Change:
    """The arguments of every call; of those that have them already none."""
    changes: list[Change] = []
    there: list[NoEdit] = []
    for call in calls:
        try:
            changes.append(set_arguments(place, call, "accelerate", table, wishes))
        except NoEdit as reason:
            if reason.kind != "already":
                raise
            there.append(reason)
    if not changes:
        raise there[0]
    return reduce(together, changes)


def _needs_plugin(place: Place, calls: list[Call], wishes: Mapping[str, str]) -> bool:
    if set(wishes) != {"compile"}:
        return True
    return any(Arguments(place.program, s, c, {}).find("dynamo_plugin") is not None for s, c in calls)


def _refuse_without_accumulate(place: Place, call: Call, steps: str) -> None:
    """The argument alone changes nothing: the loop has to be written for it."""
    if any(True for s in place.program.scripts_with(".accumulate(") for _ in method_calls(s, "accumulate")):
        return
    why = "the loop has to be written for it: `with accelerator.accumulate(model):`"
    raise refusal(*call, why, command=_ACCUMULATE.format(steps=steps), framework="accelerate")


def _refuse_other_precision(place: Place, calls: list[Call], *, scaled: bool) -> None:
    """DeepSpeed's configuration has a precision of its own; and losses that are scaled need an optimizer that prepare() knows."""
    program = place.program
    for script, call in calls:
        if Arguments(program, script, call, {}).find("deepspeed_plugin") is not None:
            raise refusal(script, call, "the configuration of the DeepSpeed plugin sets the precision")
    for script in program.scripts_with(".prepare(") if scaled else ():
        for call, _ in method_calls(script, "prepare"):
            made = (
                (home, origin)
                for arg in call.args
                for home, origin in program.of(script, arg.value)
                if isinstance(origin, cst.Call)
            )
            if any(_is_own_optimizer(program, home, origin) for home, origin in made):
                why = "prepare() does not wrap an optimizer of a class that is not torch's: gradients would stay scaled"
                raise refusal(script, call, why)


def _is_own_optimizer(program: Project, script: Script, made: cst.Call) -> bool:
    """Whether a class of the program that steps, and is no torch.optim.Optimizer, is constructed."""
    owner = program.class_by_name(script, made.func)
    if owner is None or any(base.startswith("torch.") for base in program.bases(*owner)):
        return False
    return any(f.name.value == "step" for s, c in program.lineage(*owner) for f in s.all(cst.FunctionDef, c))


# ---------------------------------------------------------------------- the file of `accelerate launch`


def _in_file(place: Place, call: Call, wishes: Mapping[str, str]) -> Change | None:
    """The change of the configuration file that the launch command names, where it is what decides."""
    settings = launch_config(place, guess=False)
    wish = next(iter(wishes))
    arguments = Arguments(place.program, call[0], call[1], {})
    if settings is None or arguments.hidden:
        return None
    if wish in ("bf16", "fp16") and not _is_set(arguments, "mixed_precision"):
        now = settings.value("mixed_precision")
        if now is OTHER:
            why = f"{settings.file.name} sets mixed_precision in a way that is not read"
            raise NoEdit("display", why, [settings.candidate("mixed_precision")], framework="accelerate")
        if now not in (None, wish, "no", False):
            why = f"{settings.file.name} sets mixed_precision to {now} on purpose"
            raise NoEdit("display", why, [settings.candidate("mixed_precision")], framework="accelerate")
        options = {c.option("mixed_precision") for c in starts(place)} - {None}
        if now is None or options or find_config(place) is not None:
            return None
        return _set_in(place, settings, "mixed_precision", {"mixed_precision": wish})
    if wish == "compile" and not (
        _is_set(arguments, "dynamo_plugin") or _is_set(arguments, "dynamo_backend")
    ):
        if settings.find("dynamo_config") is None:
            return None
        return _set_in(place, settings, "dynamo_backend", {"dynamo_config": _dynamo(settings, wishes)})
    return None


def _set_in(place: Place, settings: Document, option: str, values: dict[str, Any]) -> Change:
    """What the launch command or the variable that it sets says of the `option` wins over the file."""
    return say_what_is_not_checked(
        place,
        [f"--{option}", f"ACCELERATE_{option.upper()}"],
        lambda: change_of(settings.file, settings.merge(values), "sets this", "accelerate"),
    )


def _is_set(arguments: Arguments, name: str) -> bool:
    arg = arguments.find(name)
    return arg is not None and literal(arg.value) is not None


def _dynamo(settings: Document, wishes: Mapping[str, str]) -> dict[str, Any]:
    keys = {
        "compile": "dynamo_backend",
        "compile_backend": "dynamo_backend",
        "compile_mode": "dynamo_mode",
        "compile_dynamic": "dynamo_use_dynamic",
        "compile_fullgraph": "dynamo_use_fullgraph",
    }
    values: dict[str, Any] = {}
    for wish, text in wishes.items():
        value = "inductor" if wish == "compile" else literal(cst.parse_expression(text))
        there = settings.value("dynamo_config", keys[wish])
        if wish != "compile" or there in (None, "NO", "no", False):
            is_backend = keys[wish] == "dynamo_backend" and isinstance(value, str)
            values[keys[wish]] = str(value).upper() if is_backend else value
    return values
