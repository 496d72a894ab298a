"""What a recorded process runs on and with: `environment.json`. No host, no user, no path, no secret.

Standard library and the torch that the script has imported: this runs inside the user's process, under its Python.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from trace_doctor.recording import whole_files
from trace_doctor.recording.harmless import MASK, is_number, is_word
from trace_doctor.recording.options import ENVIRONMENT_FILE

PACKAGES = (
    "transformers", "accelerate", "lightning", "pytorch_lightning", "deepspeed", "peft", "trl", "bitsandbytes",
    "flash_attn", "xformers", "triton", "numpy",
)  # fmt: skip
"""named with their versions where the process has imported them"""

SETTINGS = (
    "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "KMP_AFFINITY", "GOMP_CPU_AFFINITY",
    "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF", "PYTORCH_NO_CUDA_MEMORY_CACHING",
    "CUDA_LAUNCH_BLOCKING", "CUDA_DEVICE_MAX_CONNECTIONS", "CUBLAS_WORKSPACE_CONFIG", "NVIDIA_TF32_OVERRIDE",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "TORCH_NCCL_ASYNC_ERROR_HANDLING", "TORCH_NCCL_AVOID_RECORD_STREAMS",
    "NCCL_ALGO", "NCCL_PROTO", "NCCL_P2P_DISABLE", "NCCL_IB_DISABLE", "NCCL_DEBUG", "TORCH_DISTRIBUTED_DEBUG",
    "TORCH_COMPILE_DISABLE", "TORCHDYNAMO_DISABLE", "TORCH_LOGS", "TOKENIZERS_PARALLELISM",
    "ACCELERATE_MIXED_PRECISION", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS", "ACCELERATE_USE_DEEPSPEED",
    "ACCELERATE_USE_FSDP", "ACCELERATE_DYNAMO_BACKEND",
)  # fmt: skip
"""environment variables that are settings of the run and neither a name, a path nor a secret"""

_RELEASE = re.compile(r"(\d{1,4}(?:\.\d{1,4}){0,2})(?:[.-]?(?:a|b|rc|alpha|beta|post|dev)\d{0,8}){0,3}")
_MOST_DIGITS = 8
"""of a release; more are a card or a key with points in it"""


def describe(environment: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Versions, device, threads and settings of this process. What cannot be told is None or absent; never raises.

    Asks torch only if it is imported, and CUDA only if the script has already initialised it.
    """
    description: dict[str, Any] = {
        "torch": None,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu_count": _cores(),
        "packages": _packages(),
        "settings": {name: _setting(environment[name]) for name in SETTINGS if environment.get(name)},
    }
    torch = sys.modules.get("torch")
    if torch is None:
        return description
    questions: dict[str, Callable[[], Any]] = {
        "torch": lambda: _version(torch.__version__),
        "cuda": lambda: torch.version.cuda,
        "hip": lambda: torch.version.hip,
        "torch_threads": torch.get_num_threads,
        "torch_interop_threads": torch.get_num_interop_threads,
        "float32_matmul_precision": torch.get_float32_matmul_precision,
        "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
        "deterministic": torch.are_deterministic_algorithms_enabled,
    }
    if torch.cuda.is_initialized():
        questions.update(
            {
                "device": torch.cuda.get_device_name,
                "device_count": torch.cuda.device_count,
                "device_memory_bytes": lambda: (
                    torch.cuda.get_device_properties(torch.cuda.current_device()).total_memory
                ),
                "driver": _driver,
                "cudnn": torch.backends.cudnn.version,
                "nccl": lambda: ".".join(map(str, torch.cuda.nccl.version())),
            }
        )  # no |=: the script's Python may be older than this project's
    else:
        description["device"] = "cpu"
    for name, ask in questions.items():
        with contextlib.suppress(Exception):  # what this build does not know is left out
            description[name] = ask()
    return description


def write(folder: Path) -> None:
    """Writes `environment.json` of this process into the folder, unless another rank was first. Raises OSError."""
    path = folder / ENVIRONMENT_FILE
    if path.exists():
        return
    whole_files.write(path, json.dumps(describe(), indent=2, default=str) + "\n")


def _setting(value: str) -> str:
    """A value that is made of numbers and words; anything else in its place is no setting."""
    parts = re.split(r"[\s,:;=+|]+", value)
    return (
        value
        if all(not part or is_number(part) or is_word(part, most_unknown=20, longest=32) for part in parts)
        else MASK
    )


def _cores() -> int | None:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return os.cpu_count()


def _packages() -> dict[str, str]:
    versions = {name: getattr(sys.modules.get(name), "__version__", None) for name in PACKAGES}
    return {name: _version(version) for name, version in versions.items() if version is not None}


def _version(said: object) -> str:
    """What a module, which may be the script's own, gives as its version. Behind the `+` builds name themselves."""
    public, plus, build = str(said).partition("+")
    release = _RELEASE.fullmatch(public)
    if release is None or sum(c.isdigit() for c in release[1]) > _MOST_DIGITS:
        return MASK
    return public + (plus + (build if is_word(build) else MASK) if plus else "")


def _driver() -> str | None:
    """Version of NVIDIA's kernel module, as Linux tells it."""
    text = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8", errors="replace")
    match = re.search(r"\b\d{3}\.\d+(\.\d+)?\b", text)
    return match[0] if match else None
