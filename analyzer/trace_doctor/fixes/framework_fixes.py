"""A fix in the terms of the framework that runs the training loop: an argument of its Trainer, an option of the command
line that starts it, or nothing at all, because it does so by itself."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

import libcst as cst

from trace_doctor.fixes.codemods import codemods
from trace_doctor.fixes.frameworks.accelerate import in_accelerator
from trace_doctor.fixes.frameworks.deepspeed import in_agreement, in_config
from trace_doctor.fixes.frameworks.launchers import pass_options, say_what_is_not_checked
from trace_doctor.fixes.frameworks.lightning import in_lightning
from trace_doctor.fixes.frameworks.settings import Call, is_available, needs, set_arguments
from trace_doctor.fixes.frameworks.trainers import MANAGED, TRAINING_ARGUMENTS, wishes_of
from trace_doctor.fixes.literals import source_text
from trace_doctor.model.parameters import DataLoaderArgs, Parameters
from trace_doctor.program.edits import Candidate, Change, NoEdit, remove_argument, together
from trace_doctor.program.place import Place, already, only, refusal
from trace_doctor.program.project import Project
from trace_doctor.program.queries.arguments import Arguments
from trace_doctor.program.queries.dataloaders import training_loops
from trace_doctor.program.script import Script, argument, dotted, literal, method_name, receiver

_LIGHTNING = frozenset(
    f"{root}.{part}"
    for root in ("lightning", "lightning.pytorch", "pytorch_lightning")
    for part in ("Trainer", "trainer.Trainer", "trainer.trainer.Trainer")
)
_TRAINER = re.compile(r"(?:transformers|trl|sentence_transformers)\..*Trainer")
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


def in_framework(place: Place, codemod: str, params: Parameters) -> Change | None:
    """The change in the framework's terms; None where the script runs its own loop or the framework has no word for it.

    Raises NoEdit where the framework does it by itself, or where it has to be told on the command line.
    """
    use = _framework(place)
    if use is None:
        return None
    name, calls = use
    reason = MANAGED.get(codemod, {}).get(name)
    if reason is not None and not _by_hand(place):
        raise NoEdit("display", reason, framework=name)
    wishes = wishes_of(codemod, params)
    if not wishes:
        return None
    _refuse_by_hand(place, name, wishes)
    if codemod == "pinned-copies":
        return _pin(place, name, calls, wishes)
    if name == "transformers":
        return _training_arguments(place, calls, wishes) if set(wishes) <= set(TRAINING_ARGUMENTS) else None
    if name == "accelerate":
        return in_accelerator(place, calls, wishes)
    if name == "deepspeed":
        return in_config(place, wishes)
    return in_lightning(place, name, calls, params, wishes)


def _refuse_by_hand(place: Place, framework: str, wishes: Mapping[str, str]) -> None:
    """What the script does itself is not asked of its framework as well."""
    if "compile" in wishes and framework != "lightning":
        for script in place.program.scripts_with("torch.compile"):
            for call in script.calls("torch.compile"):
                raise already(script, call, "compiles already", framework)
    if "checkpointing" in wishes:
        _refuse_prepared(place, framework)
    adapters = "checkpointing" in wishes and place.program.scripts_with("get_peft_model", "peft_config")
    if adapters and not place.program.scripts_with(*_INPUTS_WITH_GRADIENTS):
        why = "the base model is frozen: call model.enable_input_require_grads() first, or no gradient gets through"
        raise NoEdit("display", why, framework=framework)


def _refuse_prepared(place: Place, framework: str) -> None:
    """What makes a quantized model ready for training recomputes activations, unless it is told not to."""
    for script in place.program.scripts_with("prepare_model_for_"):
        for call in script.all(cst.Call):
            name, arg = dotted(call.func) or "", argument(call, "use_gradient_checkpointing", 1)
            prepares = name.split(".")[-1] in (
                "prepare_model_for_kbit_training",
                "prepare_model_for_int8_training",
            )
            if prepares and (arg is None or literal(arg.value) is True):
                raise already(script, call, "recomputes activations already", framework)


_INPUTS_WITH_GRADIENTS = ("enable_input_require_grads", "prepare_model_for_", "use_reentrant", "SFTTrainer")
"""words of scripts, and a Trainer, that see to it"""


def _pin(place: Place, framework: str, calls: list[Call], wishes: Mapping[str, str]) -> Change | None:
    """Pinned memory is the loader's affair, copies that do not wait are the framework's."""
    if framework == "transformers":
        return _training_arguments(place, calls, {"pin_memory": "True", **wishes})
    if framework == "deepspeed":
        return None
    loaders = replace(place, scripts=place.program.scripts_with("DataLoader"), line=None, function=None)
    try:
        loader = codemods()["dataloader-args"].run(loaders, DataLoaderArgs(pin_memory=True))
    except NoEdit as reason:
        if framework != "accelerate" or reason.kind != "already":
            raise
        return in_accelerator(place, calls, wishes)
    if framework != "accelerate":
        return replace(loader, framework="lightning")  # copies do not wait where the loader pins
    try:
        copies = in_accelerator(place, calls, wishes)
    except NoEdit as reason:  # pinned memory alone is half of it
        return replace(loader, framework="accelerate", notes=(*loader.notes, reason.why))
    return together(copies, loader) if copies is not None else None


# ---------------------------------------------------------------------- which framework


def _framework(place: Place) -> tuple[str, list[Call]] | None:
    """The framework that runs the loop which a place means, with the calls that construct its Trainer."""
    trainers = _of_engine(place, _trainers(place.program))
    for name in ("transformers", "lightning"):
        if name in trainers and (_starts(place) or not _own_loops(place)):
            return name, trainers[name]
    return next(((n, trainers[n]) for n in ("accelerate", "fabric", "deepspeed") if n in trainers), None)


def _of_engine(place: Place, trainers: dict[str, list[Call]]) -> dict[str, list[Call]]:
    """Of the Trainers of several frameworks those in files that import the captured one, or that it imports: a program can
    have several engines, of which the others did not run. All where that tells none."""
    if len(trainers) < 2 or place.script is None:
        return trainers
    near = {s: place.program.share_imports(s, place.script) for calls in trainers.values() for s, _ in calls}
    own = {name: [(s, c) for s, c in calls if near[s]] for name, calls in trainers.items()}
    return {name: calls for name, calls in own.items() if calls} or trainers


@lru_cache(maxsize=8)
def _trainers(program: Project) -> dict[str, list[Call]]:
    """The calls of a program that construct a Trainer, by their framework."""
    trainers: dict[str, list[Call]] = {}
    for script in program.scripts_with("Trainer", "Accelerator", "Fabric", "deepspeed"):
        for call in script.all(cst.Call):
            if (name := _kind(program, script, call)) is not None:
                trainers.setdefault(name, []).append((script, call))
    return trainers


def _kind(program: Project, script: Script, call: cst.Call) -> str | None:
    """The framework whose Trainer a call constructs, itself or by a class of the program that descends from it."""
    name = script.callee(call)
    names = {name}
    if not name or name.startswith("."):
        subclass = program.derived_class(script, call.func)
        names = program.bases(*subclass) if subclass is not None else set()
    if any(map(_TRAINER.fullmatch, names)):
        return "transformers"
    if names & _LIGHTNING:
        return "lightning"
    if not names.isdisjoint(_FABRIC):
        return "fabric"
    if name == "accelerate.Accelerator" and isinstance(script.parent(call), cst.Attribute):
        return None  # `Accelerator().device`: made to be asked, not to train with
    return {"accelerate.Accelerator": "accelerate", "deepspeed.initialize": "deepspeed"}.get(name)


def _starts(place: Place) -> bool:
    """Whether the captured function hands over to a Trainer: `trainer.train()`, `trainer.fit(model)`."""
    script, line, function = place.script, place.line, (place.function or "").split(".")[-1]
    constructions = [call for calls in _trainers(place.program).values() for _, call in calls]
    for call in script.all(cst.Call) if script is not None else ():
        trainer = receiver(call) if method_name(call) in ("train", "fit") else None
        if script is None or trainer is None:
            continue
        here = script.covers(call, line) if line is not None else script.function_name(call) == function
        if here and any(origin in constructions for _, origin in place.program.of(script, trainer)):
            return True
    return False


def _own_loops(place: Place) -> bool:
    """Whether the program trains in a loop of its own, in a file that the captured one imports or is imported by."""
    scripts = place.program.scripts_with("backward(", ".step(")
    near = (s for s in scripts if place.script is None or place.program.share_imports(s, place.script))
    return any(True for s in near for _ in training_loops(s))


def _by_hand(place: Place) -> bool:
    """Lightning's manual optimization, or gradients that the script clears itself."""
    return bool(place.program.scripts_with("automatic_optimization", "zero_grad("))


# ---------------------------------------------------------------------- Hugging Face Trainer


def _training_arguments(place: Place, trainers: list[Call], wishes: dict[str, str]) -> Change | None:
    if "empty_cache" in wishes:
        return _no_empty_cache(place)
    calls: list[Call] = []
    parsers: list[Call] = []
    for script, trainer in trainers:
        # by its name first: a second model may come before it
        args = Arguments(place.program, script, trainer, {}).find("args")
        args = args or Arguments(place.program, script, trainer, {"args": 1}).find("args")
        for home, origin in place.program.of(args.script, args.value) if args is not None else ():
            if isinstance(origin, cst.Call) and _is_parser(place.program, home, origin):
                parsers.append((home, origin))
            elif isinstance(origin, cst.Call) and _is_arguments(origin) and (home, origin) not in calls:
                calls.append((home, origin))
    if "num_workers" in wishes:
        _refuse_iterable(place)
    if calls and not parsers:
        script, call = only(calls, "construct the Trainer's arguments", "")
        if "log_every" in wishes and Arguments(place.program, script, call, {}).find("logging_steps") is None:
            return None  # every 500 steps by default
        _refuse_beside_others(place, script, call, wishes)
        if "accumulate" in wishes:
            wishes = _accumulate(place, script, call, int(wishes["accumulate"]))
        change = set_arguments(place, (script, call), "transformers", TRAINING_ARGUMENTS, wishes)
        return in_agreement(place, change, wishes)
    if parsers and "log_every" not in wishes:
        return in_agreement(place, _on_command_line(place, parsers[0], wishes), wishes)
    return None


def _refuse_beside_others(place: Place, script: Script, call: cst.Call, wishes: Mapping[str, str]) -> None:
    """Raises NoEdit where another of the Trainer's arguments leaves nothing to a wish, or does not go with it."""
    arguments = Arguments(place.program, script, call, {})
    for name in ("fp16", "bf16") if "tf32" in wishes else ():
        half = arguments.find(name)
        if half is not None and literal(half.value) is True:
            raise already(half.script, half.value, f"trains with {name}", "transformers")
    engine = arguments.find("deepspeed") if "compile" in wishes else None
    if engine is not None and literal(engine.value) is not None:
        why = "DeepSpeed gets the model, and with it the question of torch.compile"
        raise refusal(engine.script, engine.value, why, framework="transformers")


def _refuse_iterable(place: Place) -> None:
    """Workers multiply the data of an IterableDataset that does not share it out."""
    for word in ("IterableDataset", "ConstantLengthDataset"):
        for script in place.program.scripts_with(word):
            where = [Candidate.of(script, script.line_of(script.text.index(word)))]
            why = f"{word}: each worker would deliver all of it unless its __iter__ takes a share"
            raise NoEdit("display", why, where, framework="transformers")


def _is_arguments(call: cst.Call) -> bool:
    """`TrainingArguments(...)`, `SFTConfig(...)`: a Trainer of TRL takes models by position, too."""
    return (dotted(call.func) or "").split(".")[-1].endswith(("Arguments", "Args", "Config"))


def _is_parser(program: Project, script: Script, call: cst.Call) -> bool:
    """Whether a call parses into the Trainer's arguments: by the methods of HfArgumentParser, or of a class of its own."""
    parser, method = receiver(call), method_name(call)
    if method in _PARSERS or parser is None or method != "parse":
        return method in _PARSERS
    constructions = [(s, o) for s, o in program.of(script, parser) if isinstance(o, cst.Call)]
    return any((s.callee(o) or dotted(o.func) or "").endswith("ArgumentParser") for s, o in constructions)


def _accumulate(place: Place, script: Script, call: cst.Call, steps: int) -> dict[str, str]:
    """The same number of samples per optimizer step, in `steps` times as many passes."""
    arguments = Arguments(place.program, script, call, {})
    batch, now = arguments.find("per_device_train_batch_size"), arguments.find("gradient_accumulation_steps")
    size = literal(batch.value) if batch is not None else 8
    passes = literal(now.value) if now is not None else 1
    if not isinstance(size, int) or passes != 1 or size % steps:
        why = f"divide per_device_train_batch_size by {steps} and multiply gradient_accumulation_steps by it"
        raise refusal(script, call, why, framework="transformers")
    return {"batch_size": source_text(size // steps), "accumulate": source_text(steps)}


def _no_empty_cache(place: Place) -> Change | None:
    """Takes `torch_empty_cache_steps` out of the Trainer's arguments."""
    for script in place.program.scripts_with("torch_empty_cache_steps"):
        for call in script.all(cst.Call):
            if (arg := argument(call, "torch_empty_cache_steps")) is not None:
                if literal(arg.value) is None:
                    raise already(script, call, "empties no cache", framework="transformers")
                edit = remove_argument(script, call, arg)
                return Change(script, (edit,), script.line(arg), framework="transformers")
    return None


def _on_command_line(place: Place, parser: Call, wishes: Mapping[str, str]) -> Change:
    """The Trainer's arguments come from a parser: options of the launch script, else a command to type."""
    options: dict[str, str] = {}
    late: list[str] = []
    for wish, value in wishes.items():
        setting = TRAINING_ARGUMENTS[wish]
        if wish == "pin_memory":
            continue  # pinned by default
        if not is_available(place, "transformers", setting):
            late.append(needs("transformers", setting, value))
            continue
        options[setting.name] = setting.value.format(value).strip('"')
    if not options:
        why = "; ".join(late) or "the Trainer does this by default"
        raise NoEdit("display", why, framework="transformers")
    settings = [TRAINING_ARGUMENTS[wish] for wish in wishes]
    return say_what_is_not_checked(
        place,
        [f"--{name}" for name in options],
        lambda: pass_options(place, parser[0].name, options, late, {s.name: s for s in settings}),
    )
