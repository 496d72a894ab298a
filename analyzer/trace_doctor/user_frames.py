"""Which source files are the user's own, by their name alone.

Snapshots hold absolute paths. Traces do not: the profiler cuts every prefix that is an entry of `sys.path` or a site
folder (torch/profiler/python_tracer.py), so that `…/site-packages/torch/nn/modules/module.py`, `/usr/lib/python3.11/
threading.py` and `/home/me/train.py` arrive as `torch/nn/modules/module.py`, `threading.py` and `train.py`.
"""

from __future__ import annotations

import ntpath
import os
import posixpath
import re
import sys
from collections.abc import Iterable
from functools import lru_cache
from itertools import takewhile
from pathlib import Path, PurePosixPath

from msgspec import Struct

_LIBRARY_NAMES = """
torch functorch torchgen torchvision torchaudio torchtext torchdata torchao torchmetrics torch_xla
torch_npu triton triton_kernels numpy scipy pandas sklearn PIL cv2 matplotlib tqdm rich loguru einops
sympy mpmath numba transformers tokenizers accelerate peft trl diffusers safetensors huggingface_hub
evaluate timm sentence_transformers lightning pytorch_lightning lightning_fabric lightning_utilities
fsspec deepspeed apex xformers flash_attn bitsandbytes liger_kernel transformer_engine vllm aiter
composer fairscale colossalai ignite fastai webdataset streaming ffcv kornia albumentations nvidia wandb
tensorboard tensorboardX mlflow comet_ml ray jax tensorflow keras hydra omegaconf pydantic cloudpickle
dill joblib psutil packaging typing_extensions six filelock requests urllib3 debugpy pydevd ipykernel
IPython traitlets tornado pytest _pytest pluggy click typer trace_doctor sitecustomize _trace_doctor_start
"""
_LIBRARIES = frozenset(_LIBRARY_NAMES.split())
# HF `datasets` shares its name with the folder of many repositories: only files known to be the library's count
_HF_DATASETS = re.compile(
    r"datasets/(?:(?:arrow_dataset|iterable_dataset|table|builder|load|fingerprint|dataset_dict)\.py|formatting/|features/)"
)
# modules of the standard library whose name a script may well bear
_SCRIPT_NAMES = frozenset({"trace", "profile", "code"})
_LIBRARY_PATH = re.compile(
    r"(?:^|/)(?:site-packages|dist-packages)/"
    r"|(?:^|/)lib(?:64)?/python\d"
    r"|/python[\d.]*/lib/"
    r"|/pytorch/torch/"
    r"|/torch/(?:nn|optim|autograd|utils|profiler|fx|distributed|compiler|functional\.py|_\w+)(?:/|\.py|$)"
    r"|/torchinductor_[^/]*/"
    r"|/trace_doctor/recording/"
    r"|\.so(?:[.\d]*)?$",
    re.IGNORECASE,
)
_DETOUR = re.compile(r"(?:^|[/\\])\.\.?[/\\]")
_INSTALLED = re.compile(r"^(?:.*[/\\])?(?:site|dist)-packages[/\\](?=.)", re.DOTALL)
_ABSOLUTE = re.compile(r"/|[A-Za-z]:/")


@lru_cache(maxsize=65536)
def is_user_frame(filename: str) -> bool:
    """Whether this file is the user's: not torch, no library, not the standard library, not generated or native code.

    `filename` is as a trace or a snapshot holds it. A relative path counts as a library when its first part is the
    name of a well-known one or of a standard module.
    """
    if not is_python_file(filename):
        return False
    path = filename.replace("\\", "/")
    if _LIBRARY_PATH.search(path):
        return False
    if _ABSOLUTE.match(path):
        return True
    top = path.removeprefix("./").split("/", 1)[0].removesuffix(".py")
    if top in _LIBRARIES or _HF_DATASETS.match(path):
        return False
    return top not in sys.stdlib_module_names or top in _SCRIPT_NAMES


def is_python_file(filename: str) -> bool:
    """Whether a captured name is that of a file with Python in it, and not `<stdin>`, `??`, compiled or native code."""
    path = filename.replace("\\", "/")
    if not path or path.startswith("<") or path == "??":
        return False
    name = path.rsplit("/", 1)[-1]
    return (
        "." not in name
        or name.endswith((".py", ".pyw", ".ipynb", ".pyx"))
        or path.startswith("/tmp/ipykernel")
    )


@lru_cache(maxsize=65536)
def plain_path(name: str) -> str:
    """`pkg/../train.py` and `./train.py` as `train.py`, so that one file has one name. Other names stay as they are."""
    if _DETOUR.search(name) is None:
        return name
    return ntpath.normpath(name) if "\\" in name else posixpath.normpath(name)


@lru_cache(maxsize=65536)
def brief_path(name: str) -> str:
    """Of a file of an installed package the path below `site-packages`, as traces have it. Other names stay as they are."""
    return _INSTALLED.sub("", name, count=1)


def called(function: str) -> str:
    """A function as people write it: `train()`. `<module>` and `<lambda>` stay as they are."""
    return function if function.endswith((")", ">")) else f"{function}()"


class Frame(Struct, frozen=True, array_like=True):
    """A Python function in a trace."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{called(self.function)} ({brief_path(self.file)}:{self.line})"


_PYTHON_EVENT = re.compile(r"(.+)\((\d{1,9})\): (.+)", re.DOTALL)


@lru_cache(maxsize=65536)
def python_frame(name: str) -> Frame | None:
    """The function that a `python_function` event is about, `file(line): function`.

    None for `nn.Module: Linear_0` and built-in functions. `line` is the first line of the function, decorators
    included (measured with torch 2.13): where it is called from, or how far it got, is not in a trace. For a
    function that was open when recording began it is the line it stood on then, for a generator the line it
    resumed at, for `torch_dynamo_resume_in_f_at_N` it is N.
    """
    if name.startswith(("nn.Module: ", "<built-in")):
        return None
    match = _PYTHON_EVENT.fullmatch(name)
    return Frame(plain_path(match.group(1)), int(match.group(2)), match.group(3)) if match else None


def is_user_function(name: str) -> bool:
    """Whether this `python_function` event is about a function of the user's."""
    frame = python_frame(name)
    return frame is not None and is_user_frame(frame.file)


def same_file(one: str, other: str) -> bool:
    """Whether two captured names can be the same file: the shorter is a tail of the longer, by whole folders."""
    a, b = (name.replace("\\", "/").removeprefix("./").split("/") for name in (one, other))
    short, long = sorted((a, b), key=len)
    return long[len(long) - len(short) :] == short


def shared_parts(one: str, other: str) -> int:
    """How many last parts the paths of a file share that was recorded twice; 0 where they are of two files. A project may lie
    in another folder; a path that is not known may be any."""
    one, other = (path.replace("\\", "/") for path in (one, other))
    if not one or not other:
        return 1
    a, b = ([p for p in path.split("/") if p not in ("", ".")] for path in (one, other))
    shared = len(
        list(takewhile(lambda pair: pair[0] == pair[1], zip(reversed(a), reversed(b), strict=False)))
    )
    moved = shared > 1 and all(path.startswith("/") or path[1:3] == ":/" for path in (one, other))
    return shared if moved or shared == min(len(a), len(b)) else 0


def one_name_each(files: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """(fault, path of its file) -> the path that stands for all that name the same file: the longest, as a tail names less."""
    known: dict[str, list[str]] = {}
    names: dict[tuple[str, str], str] = {}
    for fault, file in sorted(set(files), key=lambda each: (-len(each[1]), each)):
        same = next((name for name in known.setdefault(fault, []) if shared_parts(name, file)), None)
        if same is None:
            known[fault].append(file)
        names[fault, file] = file if same is None else same
    return names


def shown_path(filename: str, source: Path | None) -> str:
    """A captured file name as it is below the user's `--source`, when that has such a file; else as captured.

    The longest tail of the captured path that exists there wins; two files of the same name in different folders
    are never confused unless the capture itself holds a bare name.
    """
    path = PurePosixPath(filename.replace("\\", "/"))
    if source is None:
        return filename
    if source.is_file():
        return source.name if path.name == source.name else filename
    parts = [p for p in path.parts if p not in ("/", ".", "..")]
    for first in range(len(parts)):
        tail = PurePosixPath(*parts[first:])
        if os.path.isfile(source / tail):  # False for a name that no file can have
            return str(tail)
    return filename
