"""What a framework that runs the training loop is told, where a plain loop would be edited.

A setting is written only in a form that the framework is known to accept: `since` is the first release whose source has
it, and without a pinned version only settings that every release of the torch 2 era has are used. Read from the sources
of transformers 4.30.2, 4.36.2, 4.38.2, 4.40.2, 4.41.2, 4.45.2, 4.57.1 and 5.23.0 (training_args.py, trainer_pt_utils.py),
accelerate 0.26.1, 0.28.0 to 0.31.0, 0.34.2, 1.0.1 to 1.7.0 and 1.15.0 (accelerator.py, utils/dataclasses.py) and Lightning
1.9.5, 2.0.0 and 2.6.6 (trainer.py, fabric.py, connector.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from trace_doctor.fixes.literals import source_text
from trace_doctor.model.parameters import (
    Autocast,
    BatchSize,
    Compile,
    DataLoaderArgs,
    EveryN,
    GradientAccumulation,
    OptimizerArgs,
    Parameters,
    RemoveCall,
    ReplaceOptimizer,
    SetConfig,
)

Version = tuple[int, int]


@dataclass(frozen=True)
class Plugin:
    """An object that a framework's class is passed, which has the arguments instead of the class."""

    name: str
    """the argument that takes it"""
    constructor: str
    """qualified name of its class"""
    since: Version | None = None
    excludes: tuple[str, ...] = ()
    replaces: str = ""
    """a simpler argument that says less, and that the two exclude each other"""


@dataclass(frozen=True)
class Setting:
    """One argument of a framework's class. `value` is its text for a wish; `{}` stands for the wished value."""

    name: str
    value: str = "{}"
    since: Version | None = None
    """None: in every release since torch 2.0"""
    always: str = ""
    """a text that every release takes, for releases that may be older than `since`; empty where there is none"""
    excludes: tuple[str, ...] = ()
    """arguments that contradict it"""
    plugin: Plugin | None = None
    """where it is no argument of the class itself"""
    instead_of: tuple[object, ...] = ()
    """the only values that it takes the place of: any other was chosen; empty where every value may be replaced"""


_DYNAMO = Plugin("dynamo_plugin", "accelerate.utils.TorchDynamoPlugin", (1, 2), replaces="dynamo_backend")
_LOADING = Plugin(
    "dataloader_config",
    "accelerate.utils.DataLoaderConfiguration",
    (0, 30),
    ("split_batches", "dispatch_batches", "even_batches", "use_seedable_sampler"),
)
_FP32 = (32, "32", "32-true")
_ADAMW = ("adamw_hf", "adamw_torch", "adamw_torch_fused")
TRAINING_ARGUMENTS: Mapping[str, Setting] = {
    "num_workers": Setting("dataloader_num_workers"),
    "pin_memory": Setting("dataloader_pin_memory"),
    "persistent_workers": Setting("dataloader_persistent_workers", since=(4, 36)),
    "prefetch_factor": Setting("dataloader_prefetch_factor", since=(4, 38)),
    "fused": Setting("optim", '"adamw_torch_fused"', instead_of=_ADAMW),
    "adamw-8bit": Setting("optim", '"adamw_bnb_8bit"', instead_of=_ADAMW),
    "adafactor": Setting("optim", '"adafactor"', instead_of=_ADAMW),
    "bf16": Setting("bf16", "True", excludes=("fp16",)),
    "fp16": Setting("fp16", "True", excludes=("bf16",)),
    "tf32": Setting("tf32", "True"),
    "compile": Setting("torch_compile", "True"),
    "compile_mode": Setting("torch_compile_mode"),
    "compile_backend": Setting("torch_compile_backend"),
    "checkpointing": Setting("gradient_checkpointing", "True"),
    "accumulate": Setting("gradient_accumulation_steps"),
    "batch_size": Setting("per_device_train_batch_size"),
    "log_every": Setting("logging_steps"),
    "empty_cache": Setting("torch_empty_cache_steps", "None", since=(4, 45)),
    "non_blocking": Setting("accelerator_config", '{{"non_blocking": True}}', since=(4, 41)),
}
LIGHTNING: Mapping[str, Setting] = {
    "bf16": Setting("precision", '"bf16-mixed"', since=(2, 0), always='"bf16"', instead_of=_FP32),
    "fp16": Setting("precision", '"16-mixed"', since=(2, 0), always="16", instead_of=_FP32),
    "accumulate": Setting("accumulate_grad_batches"),
    "log_every": Setting("log_every_n_steps"),
    "benchmark": Setting("benchmark", excludes=("deterministic",)),
}
FABRIC: Mapping[str, Setting] = {name: LIGHTNING[name] for name in ("bf16", "fp16")}
ACCELERATE: Mapping[str, Setting] = {
    "bf16": Setting("mixed_precision", '"bf16"', instead_of=("no",)),
    "fp16": Setting("mixed_precision", '"fp16"', instead_of=("no",)),
    "accumulate": Setting("gradient_accumulation_steps", excludes=("gradient_accumulation_plugin",)),
    "compile": Setting("dynamo_backend", '"inductor"', excludes=("dynamo_plugin",)),
    "non_blocking": Setting("non_blocking", plugin=_LOADING),
}
DYNAMO: Mapping[str, Setting] = {
    "compile": Setting("backend", '"inductor"', plugin=_DYNAMO),
    "compile_mode": Setting("mode", plugin=_DYNAMO),
    "compile_backend": Setting("backend", plugin=_DYNAMO),
    "compile_dynamic": Setting("dynamic", plugin=_DYNAMO),
    "compile_fullgraph": Setting("fullgraph", plugin=_DYNAMO),
}
"""Accelerate's, where more is to be said of the compiler than that it is used"""


def wishes_of(codemod: str, params: Parameters) -> dict[str, str]:
    """What a codemod is to bring about, in words that frameworks have a setting for, with the source text of each value;
    empty for any other."""
    return {name: source_text(value) for name, value in _wishes(codemod, params)}


def _wishes(codemod: str, params: Parameters) -> Iterator[tuple[str, bool | int | str | None]]:
    values = params.set_values()
    match params:
        case DataLoaderArgs():
            order = ("num_workers", "pin_memory", "persistent_workers", "prefetch_factor")
            yield from ((name, values[name]) for name in order if values.get(name))
        case OptimizerArgs() if params.fused:
            yield "fused", True
        case Compile() if codemod == "compile-model":
            yield "compile", True
            yield from ((f"compile_{name}", value) for name, value in values.items())
        case SetConfig(name="torch.backends.cudnn.benchmark"):
            yield "benchmark", values["value"]
        case RemoveCall(call="torch.cuda.empty_cache"):
            yield "empty_cache", None
        case ReplaceOptimizer():
            yield params.to, True
        case Autocast():
            yield "fp16" if params.dtype == "float16" else "bf16", True
        case EveryN():
            yield "log_every", params.every
        case GradientAccumulation():
            yield "accumulate", params.steps
        case BatchSize() if params.size:
            yield "batch_size", params.size
        case _ if codemod in _PLAIN:
            yield _PLAIN[codemod], True


_PLAIN = {"matmul-precision": "tf32", "checkpoint-blocks": "checkpointing", "pinned-copies": "non_blocking"}
"""of codemods without parameters"""


MANAGED: Mapping[str, Mapping[str, str]] = {
    "zero-grad": {
        "transformers": "the Trainer clears the gradients after each step of the optimizer itself",
        "lightning": "the Trainer clears the gradients before each backward itself (automatic optimization)",
        "deepspeed": "the engine clears the gradients in its step() itself",
    },
    "no-sync": {
        "transformers": "the Trainer itself synchronizes accumulated gradients only once",
        "lightning": "the Trainer itself synchronizes accumulated gradients only once",
    },
}
"""What a framework does by itself, or is told otherwise than by an edit of the loop."""


def minimum_versions(requirements: Iterable[str], scripts: Iterable[str]) -> dict[str, Version]:
    """The oldest release of each framework that pins of requirement files and checks of scripts allow."""
    oldest: dict[str, Version] = {}
    for text in requirements:
        for match in _PIN.finditer(text):
            oldest.setdefault(match["name"], (int(match["major"]), int(match["minor"] or 0)))
    for text in scripts:
        for match in _CHECK.finditer(text):
            oldest.setdefault("transformers", (int(match["major"]), int(match["minor"])))
    return oldest


_PIN = re.compile(
    r"""(?:^|[\[(,])[\s\-"']*(?:pytorch[-_](?=lightning))?(?P<name>transformers|accelerate|lightning)(?:\[[\w,]*\])?"""
    r"""\s*(?:==|>=|~=)\s*(?P<major>[0-9]{1,4})(?![0-9])(?:\.(?P<minor>[0-9]{1,4})(?![0-9]))?""",
    re.MULTILINE,
)
_CHECK = re.compile(
    r"""^check_min_version\(["'](?P<major>[0-9]{1,4})\.(?P<minor>[0-9]{1,4})(?![0-9])""", re.MULTILINE
)
