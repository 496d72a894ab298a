"""Which fixes a capture of a program could ask for, by the text of its files: no capture of a program on the CPU has a fault of
the GPU, and none without convolutions has one of cuDNN.

Only made-up findings need this: a real one comes from what ran. The text is believed only where it leaves nothing open: what a foreign
package brings is not read.
"""

from __future__ import annotations

import io
import re
import sys
import tokenize
from dataclasses import dataclass
from functools import lru_cache

import libcst as cst

from trace_doctor.fixes.codemods import codemods
from trace_doctor.fixes.codemods.compiling import takes_graphs
from trace_doctor.model import Fix
from trace_doctor.model.parameters import Autocast, Compile, CompileCall, Parameters
from trace_doctor.program.import_graph import imported_names
from trace_doctor.program.project import Project
from trace_doctor.program.queries.entry import training_files
from trace_doctor.program.queries.gradients import backwards
from trace_doctor.program.queries.training import (
    Step,
    home_of,
    loss_assignments,
    loss_of,
    model_calls,
    part_calls,
)
from trace_doctor.program.script import Script, argument, literal
from trace_doctor.program.source_tree import SourceTree

_GPU = re.compile(
    r"cuda|gpu|xpu|hpu|\bmps\b|\bnpu|accelerat|lightning|fabric|deepspeed|fastai|ignite|trainer\(|\.fit\(",
    re.IGNORECASE,
)
"""what is a GPU, or may bring one by itself"""
_NO_GPU = re.compile(r"CUDA_VISIBLE_DEVICES[\"']\]?\s*[=,]\s*[\"'](?:-1)?[\"']")
_OTHER_DEVICE = re.compile(
    r"device\((?!\s*(?:[\"']cpu[\"']|\)))|[\"']-+\w*device|map_location|\.to\((?!\w*device\b|torch\.\w+\))"
    r"|\bdevice\s*=(?!=|\s*(?:torch\.device\(|[\"']cpu[\"']|(?:\w+\.)*device\b))"
)
"""a device that is not said to be the CPU"""
_CPU = re.compile(r"device\(\s*[\"']cpu[\"']|\bdevice\s*=\s*[\"']cpu[\"']")
_FOREIGN_MODEL = (
    r"\btimm\b|\btransformers\b|\bdiffusers\b|\bhub\b|from_pretrained|jit\.load|segmentation_models|\bmonai\b|\bkornia\b"
    r"|\blpips\b|import clip\b|^\s*(?:from|import)\s+\w*(?:efficientnet|pretrainedmodels|resnet|vgg)"
    r"|torchvision(?!\.(?:transforms|datasets|utils)\b| import (?:transforms|datasets|utils)\b)"
)
"""where a model may come from that the program does not spell out; torchvision has more than models"""
_CONVOLVES = re.compile(rf"conv(?:_?transpose)?\d|{_FOREIGN_MODEL}", re.IGNORECASE | re.MULTILINE)
_MULTIPLIES = re.compile(
    r"Linear|matmul|\b(?:add|badd)?b?mm\b|einsum|tensordot|[\w)\]] ?@ ?[\w(]|[aA]ttention|LSTM|GRU|RNN|Transformer|\bcdist\b"
    rf"|(?i:{_FOREIGN_MODEL})",
    re.MULTILINE,
)
_CONVOLUTION = re.compile(r"(?i:conv)(?:_?transpose)?\d(?:d|x\d)")
_PRODUCT = re.compile(
    r"Linear\(|matmul|\b(?:add|badd)?b?mm\(|einsum|tensordot|[\w)\]] ?@ ?[\w(]|[aA]ttention|LSTM|GRU|RNN|Transformer"
)
_WITHOUT_MODELS = sys.stdlib_module_names | frozenset(
    [
        "torch",
        "torchvision",
        "numpy",
        "scipy",
        "matplotlib",
        "pandas",
        "seaborn",
        "sklearn",
        "tqdm",
        "PIL",
        "cv2",
        "imageio",
        "skimage",
        "yaml",
        "h5py",
        "psutil",
        "joblib",
        "cloudpickle",
        "gym",
        "gymnasium",
        "mpi4py",
        "networkx",
        "hyperopt",
        "tensorboard",
        "tensorboardX",
        "wandb",
        "visdom",
        "torchdiffeq",
        "torchtext",
        "requests",
        "setuptools",
        "termcolor",
        "tensorflow",
        "pycocotools",
        "sphinx",
        "recommonmark",
    ]
)
"""packages that bring a program no model and no device; what another one brings is not known"""
_BEGINS = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
"""after which a statement begins"""


_ON_GPU = [
    "allocator-setting",
    "autocast",
    "checkpoint-blocks",
    "compile-loss",
    "every-n-guard",
    "matmul-precision",
    "optimizer-args",
    "remove-call",
    "sdpa-backend",
    "sum-on-device",
    "zero-grad",
]
"""edits that gain something on a GPU only: its memory, its launches, waiting for it, types that its Tensor Cores take"""
_OF_COMPILED = ("compile-loss", "graph-break-line", "mark-dynamic")
"""edits that answer events of a compiled function"""
_COMPILES = re.compile(r"torch\.compile\b|torch_compile|\b(?:model|net|module|self)\w*\.compile\(|_dynamo")
_PADS = re.compile(r"pad_sequence|collate_fn|padding=True|BucketIterator")
_HALF = re.compile(r"mixed_precision[\s=:\"']+(?:fp16|bf16)")


@dataclass(frozen=True)
class Program:
    """The files of a source that train."""

    tree: SourceTree
    names: tuple[str, ...]

    @classmethod
    def of(cls, tree: SourceTree) -> Program:
        """Those of a capture that names none."""
        return cls(tree, tuple(training_files(tree)))

    @property
    def project(self) -> Project:
        """As codemods see it."""
        return Project.of_tree(self.tree, self.names)


def is_plausible(program: Program, fix: Fix) -> bool:
    """Whether a capture of the program could have a finding with this fix."""
    if fix.codemod is None:
        return True
    params = codemods()[fix.codemod].parameters(fix.params)
    if _gains_on_gpu(fix.codemod, params) and not may_use_gpu(program):
        return False
    compiled = fix.codemod in _OF_COMPILED or isinstance(params, CompileCall)
    if compiled and not any(map(_COMPILES.search, _texts(program))):
        return False
    if isinstance(params, CompileCall) and params.args.dynamic:
        return may_change_shape(program)
    if fix.codemod == "autocast" and is_launched_in_half_precision(program):
        return False
    if fix.codemod == "matmul-precision":
        return may_multiply(program) and not trains_under_autocast(program)
    if fix.codemod == "channels-last":
        return may_convolve(program) and not multiplies_mostly(program)
    return True


def _gains_on_gpu(codemod: str, params: Parameters) -> bool:
    match params:
        case Autocast():
            return params.device != "cpu"
        case Compile() if codemod == "compile-model":
            return takes_graphs(params)
    return codemod in _ON_GPU


@lru_cache(maxsize=16)
def may_change_shape(program: Program) -> bool:
    """Whether a program may train on batches of several shapes: padded ones, those of a collate function, a last one that is smaller."""
    if not any(".backward(" in text for text in _texts(program)) or any(map(_PADS.search, _texts(program))):
        return True
    loaders = [call for _, call in program.project.dataloaders]
    endless = any("IterableDataset" in text for text in _texts(program))
    return not endless and any(argument(c, "drop_last") is None for c in loaders)


@lru_cache(maxsize=16)
def is_launched_in_half_precision(program: Program) -> bool:
    """Whether a program leaves its precision to `accelerate launch`, and the commands that its repository shows name one of 16 bits."""
    if not any("Accelerator(" in text for text in _texts(program)):
        return False
    root = program.tree.root if program.tree.root.is_dir() else program.tree.root.parent
    shown = [*root.glob("*.md"), *root.glob("*.sh"), *root.glob("scripts/*.sh"), *root.glob("*.y*ml")]
    return any(_HALF.search(file.read_text(encoding="utf-8", errors="replace")) for file in shown)


@lru_cache(maxsize=16)
def may_use_gpu(program: Program) -> bool:
    """Whether a program may run on a GPU. Not where it imports no package that may bring one, trains by its own `backward()`,
    and all that its files say of devices is that they are the CPU, or that CUDA sees none."""
    if _imports_unknown(program):
        return True
    texts = [_NO_GPU.sub("", text) for text in _texts(program)]
    if not any(".backward(" in text for text in texts) or any(map(_GPU.search, texts)):
        return True
    told = any("device" in text or ".to(" in text for text in texts)
    return told and (any(map(_OTHER_DEVICE.search, texts)) or not any(map(_CPU.search, texts)))


@lru_cache(maxsize=16)
def may_convolve(program: Program) -> bool:
    """Whether a program may call cuDNN's convolutions."""
    return _imports_unknown(program) or any(map(_CONVOLVES.search, _texts(program)))


@lru_cache(maxsize=16)
def may_multiply(program: Program) -> bool:
    """Whether matrix products may be a good part of what a program computes: not beside more convolutions than products, which
    use TF32 by default."""
    if not _imports_unknown(program) and not any(map(_MULTIPLIES.search, _texts(program))):
        return False
    convolutions, products = _counts(program)
    return convolutions <= products


@lru_cache(maxsize=16)
def multiplies_mostly(program: Program) -> bool:
    """Whether a program spells out twice as many products as convolutions, as a ViT does: the layout of its one convolution costs
    little."""
    convolutions, products = _counts(program)
    return products > 2 * convolutions


def _counts(program: Program) -> tuple[int, int]:
    """How many convolutions and products the files spell out."""
    texts = _texts(program)
    return sum(len(_CONVOLUTION.findall(t)) for t in texts), sum(len(_PRODUCT.findall(t)) for t in texts)


@lru_cache(maxsize=16)
def trains_under_autocast(program: Program) -> bool:
    """Whether each training step that is found computes its loss under autocast, unconditionally and in 16 bits."""
    steps = [
        Step(s, home_of(s, c), c, loss, program.project)
        for s, c in backwards(program.project)
        if (loss := loss_of(c)) is not None
    ]
    return bool(steps) and all(map(_under_autocast, steps))


def _under_autocast(step: Step) -> bool:
    computing = [*loss_assignments(step), *model_calls(step, step.home), *part_calls(step, step.home)]
    return bool(loss_assignments(step)) and all(_is_autocast(step.script, node) for node in computing)


def _is_autocast(script: Script, node: cst.CSTNode) -> bool:
    """Whether a node stands in `with autocast(...):` that nothing switches off."""
    for up in script.between(node, script.function_of(node)):
        for call in (item.item for item in up.items) if isinstance(up, cst.With) else ():
            if isinstance(call, cst.Call) and script.callee(call).endswith(".autocast"):
                enabled, dtype = argument(call, "enabled"), argument(call, "dtype")
                on = enabled is None or literal(enabled.value) is True
                return on and (dtype is None or script.code(dtype.value).endswith("float16"))
    return False


@lru_cache(maxsize=16)
def _imports_unknown(program: Program) -> bool:
    resolve, roots = program.tree.imports.resolve, set[str]()
    for name in program.names:
        for module in imported_names(program.tree.data(name)):
            if not module.startswith(".") and resolve(module, name) is None:
                roots.add(module.split(".")[0])
    foreign = {r for r in roots if r and all(resolve(r, name) is None for name in program.names)}
    return not foreign <= _WITHOUT_MODELS


@lru_cache(maxsize=16)
def _texts(program: Program) -> tuple[str, ...]:
    return tuple(_code(data.decode("utf-8", "replace")) for data in map(program.tree.data, program.names))


def _code(text: str) -> str:
    """The text of a script without its comments and docstrings; all of it where it is no Python of today."""
    lines, begins = text.split("\n"), True
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            (first, start), (last, end) = token.start, token.end
            if token.type == tokenize.COMMENT:
                lines[first - 1] = lines[first - 1][:start]
            elif token.type == tokenize.STRING and begins:
                lines[last - 1] = " " * end + lines[last - 1][end:]
                lines[first - 1 : last - 1] = [""] * (last - first)
            begins = token.type in _BEGINS or (begins and token.type in (tokenize.COMMENT, tokenize.NL))
    except (tokenize.TokenError, SyntaxError):
        return text
    return "\n".join(lines)
