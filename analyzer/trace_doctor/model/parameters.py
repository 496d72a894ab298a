"""What a fix may ask of a codemod: the parameters of each as a type, so that nothing else reaches a script.

A result is read from anywhere. Its parameters are choices, numbers within bounds and names; none is source text.
"""

from __future__ import annotations

from collections.abc import Mapping
from keyword import iskeyword
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct, field

from trace_doctor.errors import one_line
from trace_doctor.model.findings import Target

Flag = bool | Literal["True", "False"]
"""a truth value; results of before hold it as text"""
Size = Annotated[int, Meta(ge=0, le=1024)]
Share = Annotated[int, Meta(ge=2, le=1 << 16)]
"""into how many parts something is divided"""
Text = Annotated[str, Meta(max_length=4096)]
"""of a capture: it is compared with the source and never written"""
Dimension = Annotated[int, Meta(ge=0, le=63)]


def is_true(flag: Flag) -> bool:
    """Whether a flag is on, also as the text that earlier versions wrote."""
    return flag in (True, "True")


def _require_name(text: str) -> None:
    """Raises ValueError for what is no dotted name; empty is none given."""
    if len(text) > 200 or not all(p.isidentifier() and not iskeyword(p) for p in text.split(".") if text):
        raise ValueError("Expected a name")


class Parameters(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of all; of a codemod that takes none."""

    @property
    def shown_only(self) -> bool:
        """Whether people decide on the edit, and it is never made unasked, whatever a result claims."""
        return False

    def set_values(self) -> dict[str, bool | int | str]:
        """Those that are not None, in the order of their fields; truth values as such."""
        values = {name: getattr(self, name) for name in self.__struct_fields__}
        return {
            n: v in (True, "True") if v in ("True", "False") else v
            for n, v in values.items()
            if v is not None
        }

    @property
    def mentions(self) -> str:
        """A word that a script has to hold; empty where the codemod's own words tell."""
        return ""

    @property
    def target(self) -> Target | None:
        """The place that the parameters name, of a codemod that has it among them."""
        return None


class AllocatorSetting(Parameters, frozen=True, kw_only=True):
    key: Literal["expandable_segments"]
    value: Flag


class Autocast(Parameters, frozen=True, kw_only=True):
    dtype: Literal["bfloat16", "float16"] = "bfloat16"
    device: Literal["cuda", "cpu", "xpu", "mps", "hpu", "mtia"] = "cuda"


class BatchSize(Parameters, frozen=True, kw_only=True):
    """A size, or how many times the size that the script has; what an option of the command sets is then left to that.
    Raises ValueError for both and for none."""

    size: Annotated[int, Meta(ge=1, le=1 << 30)] | None = None
    times: Share | None = None

    def __post_init__(self) -> None:
        if (self.size is None) == (self.times is None):
            raise ValueError("a size, or how many times as large")


class Compile(Parameters, frozen=True, kw_only=True):
    """Arguments of torch.compile; None: not given."""

    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] | None = None
    dynamic: Flag | None = None
    fullgraph: Flag | None = None
    backend: Literal["inductor", "eager", "aot_eager", "cudagraphs"] | None = None


class DataLoaderArgs(Parameters, frozen=True, kw_only=True):
    """0, False and None leave an argument as it is, and so do fewer workers and batches ahead than the script has, unless
    `exact`: then these two are to be just so many. What an option of the command sets is left to that. `evaluation`: what
    persists are the workers of the loader that evaluates between the epochs, too."""

    num_workers: Size | None = None
    pin_memory: bool | None = None
    persistent_workers: bool | None = None
    prefetch_factor: Size | None = None
    exact: bool = False
    evaluation: bool = False


class DeepSpeedZero(Parameters, frozen=True, kw_only=True):
    stage: Literal[0, 1, 2, 3] = 0
    offload_optimizer: bool = False
    offload_param: bool = False

    @property
    def shown_only(self) -> bool:
        return self.offload_optimizer or self.offload_param


class EveryN(Parameters, frozen=True, kw_only=True):
    every: Share = 50


class GradientAccumulation(Parameters, frozen=True, kw_only=True):
    steps: Share = 2

    @property
    def shown_only(self) -> bool:
        return True


class GraphBreakLine(Parameters, frozen=True, kw_only=True):
    line: Annotated[int, Meta(ge=0, le=1 << 31)] | None = None
    file: Text | None = None
    function: Text | None = None

    @property
    def target(self) -> Target | None:
        return None if self.file is None else Target(file=self.file, line=self.line, function=self.function)


class MarkDynamic(Parameters, frozen=True, kw_only=True):
    name: str = ""
    dim: Dimension = 0

    def __post_init__(self) -> None:
        _require_name(self.name)

    @property
    def shown_only(self) -> bool:
        return True


class OptimizerArgs(Parameters, frozen=True, kw_only=True):
    fused: bool | None = None
    foreach: bool | None = None
    optimizer: str = field(default="", name="class")
    """name of its class, where the capture names it"""

    def __post_init__(self) -> None:
        _require_name(self.optimizer)


class RemoveCall(Parameters, frozen=True, kw_only=True):
    call: Literal["torch.cuda.empty_cache", "torch.cuda.synchronize"]

    @property
    def mentions(self) -> str:
        return self.call.rpartition(".")[2]


class ReplaceOptimizer(Parameters, frozen=True, kw_only=True):
    to: Literal["adamw-8bit", "adafactor"] = "adamw-8bit"
    optimizer: str = field(default="", name="class")

    def __post_init__(self) -> None:
        _require_name(self.optimizer)

    @property
    def shown_only(self) -> bool:
        return True


class SdpaBackend(Parameters, frozen=True, kw_only=True):
    backends: Annotated[
        tuple[Literal["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH"], ...],
        Meta(min_length=1, max_length=4),
    ] = ("FLASH_ATTENTION",)

    @property
    def shown_only(self) -> bool:
        return True


class CompileCall(Parameters, frozen=True, kw_only=True, tag_field="callee", tag="torch.compile"):
    """Keyword arguments to set and to remove of the one call of `callee`."""

    args: Compile = Compile()
    remove: Annotated[tuple[Literal["mode", "dynamic", "fullgraph", "backend"], ...], Meta(max_length=4)] = ()

    def __post_init__(self) -> None:
        """Raises ValueError where one argument is to be set and removed."""
        if self.args.set_values().keys() & set(self.remove) or len(set(self.remove)) < len(self.remove):
            raise ValueError("an argument is named twice")

    @property
    def shown_only(self) -> bool:
        return self.args.fullgraph in (True, "True")

    @property
    def callee(self) -> str:
        """Qualified name of the function."""
        return str(self.__struct_config__.tag)

    @property
    def mentions(self) -> str:
        return self.callee.rpartition(".")[2]


class Sdpa(Parameters, frozen=True, kw_only=True):
    heads: bool = True
    """False: the script's tensors are (batch, tokens, size), and get a dimension of heads, without which no kernel fuses"""


class SetConfig(Parameters, frozen=True, kw_only=True):
    name: Literal[
        "torch.backends.cudnn.benchmark",
        "torch.backends.cuda.matmul.allow_tf32",
        "torch._dynamo.config.capture_scalar_outputs",
    ]
    value: Flag


class ZeroGrad(Parameters, frozen=True, kw_only=True):
    mode: Literal["add", "move", "drop-set-to-none-false"] = "add"


PARAMETERS: Mapping[str, Any] = {
    "allocator-setting": AllocatorSetting,
    "autocast": Autocast,
    "batch-size": BatchSize,
    "channels-last": Parameters,
    "checkpoint-blocks": Parameters,
    "compile-loss": Compile,
    "compile-model": Compile,
    "dataloader-args": DataLoaderArgs,
    "deepspeed-zero": DeepSpeedZero,
    "detach-accumulation": Parameters,
    "every-n-guard": EveryN,
    "gradient-accumulation": GradientAccumulation,
    "graph-break-line": GraphBreakLine,
    "mark-dynamic": MarkDynamic,
    "matmul-precision": Parameters,
    "no-sync": Parameters,
    "optimizer-args": OptimizerArgs,
    "pinned-copies": Parameters,
    "remove-call": RemoveCall,
    "replace-optimizer": ReplaceOptimizer,
    "save-every-n": EveryN,
    "sdpa-backend": SdpaBackend,
    "set-call-args": CompileCall,
    "set-config": SetConfig,
    "single-precision": Parameters,
    "sum-on-device": Parameters,
    "tensor-device": Parameters,
    "use-sdpa": Sdpa,
    "zero-grad": ZeroGrad,
}
"""codemod -> the type of its parameters"""


def parameters(codemod: str, values: Mapping[str, object]) -> Any:
    """The parameters of a codemod by its name, checked. Raises msgspec.ValidationError where it takes none like these,
    KeyError for an unknown codemod."""
    return msgspec.convert(values, PARAMETERS[codemod])


def misfit(codemod: str, values: Mapping[str, object]) -> str:
    """Why a codemod does not take these parameters, in half a line; empty where it does, or is not known."""
    if codemod not in PARAMETERS:
        return ""
    try:
        parameters(codemod, values)
    except msgspec.ValidationError as error:
        what, _, where = one_line(str(error)).partition(" - at `$")
        name = where.strip(".`")
        return _cut(f"{name}: {what}" if name else what)
    return ""


def _cut(text: str, most: int = 150) -> str:
    return text if len(text) <= most else text[: most - 3] + "..."
