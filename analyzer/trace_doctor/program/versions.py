"""Which torch the script runs on, as far as it is known, and what that version accepts.

Never the version of the machine that analyses. Unknown, or known only to be newer than something older than 2.0: only
forms that are valid from 2.0 on. Known to be older than 2.0: only what that version knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from trace_doctor.errors import UsageError
from trace_doctor.model import Result

Version = tuple[int, int]


@dataclass(frozen=True)
class TorchBounds:
    """Inclusive bounds of (major, minor); None where nothing is known."""

    min: Version | None = None
    max: Version | None = None

    @property
    def oldest(self) -> Version:
        """What a fix may count on."""
        if self.max is not None and self.max < OLDEST:
            return self.min or (0, 0)
        return max(self.min or OLDEST, OLDEST)


def parse(text: str | None) -> Version | None:
    """(major, minor) of `2.9.1+cu128`; None where it begins with no version."""
    match = re.match(r"\s*v?([0-9]{1,4})\.([0-9]{1,4})(?![0-9])", text or "")
    return (int(match.group(1)), int(match.group(2))) if match else None


def bounds(result: Result, requirements: Iterable[str] = (), torch_version: str | None = None) -> TorchBounds:
    """What the user said, else the widest bounds over all inputs, else the pins of requirement files. Raises UsageError where the
    user's is no version."""
    if (version := parse(torch_version)) is not None:
        return TorchBounds(version, version)
    if torch_version:
        raise UsageError(f"torch-version: {torch_version!r} is no version, as 2.9")
    versions = [i.torch_version for i in result.inputs]
    lows = [parse(v.min) for v in versions]
    highs = [parse(v.max) for v in versions]
    low = min((v for v in lows if v), default=None) if lows and all(lows) else None
    high = max((v for v in highs if v), default=None) if highs and all(highs) else None
    if low is None and high is None:
        return pinned_bounds(requirements)
    return TorchBounds(low, high)


_PIN = re.compile(
    r"""(?:^|[\s"'\[,])(?:py)?torch\s*(?P<op>==|>=|~=|=)\s*(?P<version>[0-9]+\.[0-9]+)""",
    re.MULTILINE | re.IGNORECASE,
)
_COMMENT = re.compile(r"(?m)(?:^|\s)#.*$")


def pinned_bounds(requirements: Iterable[str]) -> TorchBounds:
    """The widest bounds that `torch==2.9.1`, `torch>=2.4`, `torch~=2.4` of requirement files and `pytorch=2.4` of
    conda's allow: files for several ways to install may differ."""
    pins = [
        (parse(pin["version"]), pin["op"] in ("==", "="))
        for text in requirements
        for pin in _PIN.finditer(_COMMENT.sub("", text))
    ]
    versions = [version for version, _ in pins if version]
    if not versions:
        return TorchBounds()
    return TorchBounds(min(versions), max(versions) if all(exact for _, exact in pins) else None)


# ---------------------------------------------------------------------- what each version accepts


@dataclass(frozen=True)
class Form:
    """Something that fixes write and that not every torch has of which captures can be read (1.8 and newer)."""

    name: str
    """dotted name, with `(keyword)` or `(keyword=value)` for an argument of a call; or an environment variable, or one of
    its options"""
    since: Version
    """first release that is known to have it"""
    pattern: str | None = None
    """how a script shows it (a regular expression); None where the codemod alone can see it"""


def _with(callee: str, argument: str) -> str:
    return rf"\b{callee}\([^()]*(?:\([^()]*\)[^()]*)*\b{argument}"


OLDEST: Version = (2, 0)
"""what a fix may count on where nothing is known"""
FORMS: tuple[Form, ...] = (
    Form("torch.utils.data.DataLoader(persistent_workers)", (1, 7), r"\bpersistent_workers="),
    Form("torch.autocast", (1, 10), r"\bautocast\((?:device_type=)?(?![^()]*['\"](?:mps|mtia))"),
    Form("torch.utils.checkpoint.checkpoint(use_reentrant)", (1, 11), _with("checkpoint", "use_reentrant=")),
    Form("torch.optim.SGD(foreach)", (1, 12), r"\bforeach="),
    Form("torch.set_float32_matmul_precision", (1, 12), r"\bset_float32_matmul_precision\("),
    Form("torch.optim.Adam(fused)", (2, 0), r"\bfused=True"),
    Form("torch.optim.AdamW(fused)", (2, 0)),
    Form("torch.utils.data.DataLoader(prefetch_factor=None)", (2, 0), r"\bprefetch_factor=[^,\n]*\bNone\b"),
    Form(
        "torch.utils.checkpoint.checkpoint_sequential(use_reentrant)",
        (2, 0),
        _with("checkpoint_sequential", "use_reentrant="),
    ),
    Form(
        "torch.nn.functional.scaled_dot_product_attention",
        (2, 0),
        r"\bscaled_dot_product_attention\((?!.*\bscale=)",
    ),
    Form("torch.compile", (2, 0), r"\btorch\.compile\b(?!.*no-cudagraphs)|\btorch_compile="),
    Form("torch._dynamo.config.capture_scalar_outputs", (2, 0), r"\b_dynamo\.config\b"),
    Form("torch._dynamo.mark_dynamic", (2, 1), r"\bmark_dynamic\("),
    Form(
        "torch.compile(mode=max-autotune-no-cudagraphs)",
        (2, 1),
        r"\bcompile\b.*\bmax-autotune-no-cudagraphs\b",
    ),
    Form(
        "torch.nn.functional.scaled_dot_product_attention(scale)",
        (2, 1),
        _with("scaled_dot_product_attention", "scale="),
    ),
    Form("torch.compiler.disable", (2, 1), r"\bcompiler\.disable\b"),
    # an option that it does not know stops the program with the first use of the device
    Form("expandable_segments", (2, 1), r"\bexpandable_segments:\s*True\b"),
    Form("torch.nn.Module.compile", (2, 2), r"(?<!\btorch)(?<!\bre)\.compile\((?!.*no-cudagraphs)"),
    Form("torch.compiler.is_compiling", (2, 3), r"\bcompiler\.is_compiling\("),
    Form("torch.nn.attention.sdpa_kernel", (2, 3), r"\bsdpa_kernel\((?!.*CUDNN)"),
    Form("torch.amp.GradScaler", (2, 3), r"(?<!cuda\.)\bamp\.GradScaler\("),
    Form("torch.optim.SGD(fused)", (2, 3)),
    Form("torch.optim.AdamW(fused) on the CPU", (2, 4)),
    Form("torch.optim.Adafactor", (2, 5), r"\bAdafactor\("),
    Form("torch.nn.attention.SDPBackend.CUDNN_ATTENTION", (2, 5), r"\bCUDNN_ATTENTION\b"),
    Form("torch.autocast(device_type=mps)", (2, 6), r"\bautocast\([^()]*['\"](?:mps|mtia)['\"]"),
    Form("torch.distributed.fsdp.fully_shard", (2, 6), r"\bfully_shard\("),
    Form("torch.compiler.set_stance", (2, 6), r"\bset_stance\("),
    Form("torch.utils.data.DataLoader(in_order)", (2, 6), r"\bin_order="),
    # 2.9.1 has the name and ignores it; before 2.12 PYTORCH_CUDA_ALLOC_CONF is what every version reads
    Form("PYTORCH_ALLOC_CONF", (2, 12), r"\bPYTORCH_ALLOC_CONF\b"),
)
_BY_NAME = {form.name: form for form in FORMS}
_ALIAS = re.compile(r"(?m)^\s*import torch as (\w+)")


def accepts(torch: TorchBounds, name: str) -> bool:
    """Whether every version that this can be accepts a form of the table."""
    return torch.oldest >= _BY_NAME[name].since


def beyond_pins(requirements: Iterable[str], before: str, after: str) -> str:
    """What an edit needs that the oldest torch of requirement files does not have, in words; empty where they name none, or it has
    all: the recorded torch may be newer."""
    least = pinned_bounds(requirements).min
    form = refused_form(TorchBounds(least, least), before, after) if least is not None else None
    if form is None or least is None:
        return ""
    since, old = (".".join(map(str, version)) for version in (form.since, least))
    return f"{form.name} needs torch {since} or newer; the files of the project name torch {old}"


def needs(name: str) -> str:
    """Why a form of the table is not written."""
    return f"{name} needs torch {'.'.join(map(str, _BY_NAME[name].since))} or newer: say --torch-version"


def refused_form(torch: TorchBounds, before: str, after: str) -> Form | None:
    """The first form that an edited text has more often than before and that a version in question does not accept: a
    fix must not raise there. What the script itself uses is its own affair."""
    if (alias := _ALIAS.search(after)) is not None:
        before, after = (re.sub(rf"\b{alias[1]}\.", "torch.", text) for text in (before, after))
    for form in FORMS:
        if form.pattern and not accepts(torch, form.name):
            old, new = (len(re.findall(form.pattern, text)) for text in (before, after))
            if new > old:
                return form
    return None


def allocator_variable(torch: TorchBounds) -> str:
    """Name of the allocator's environment variable.

    PYTORCH_CUDA_ALLOC_CONF is read by every version (2.8 to 2.11 print a harmless warning); PYTORCH_ALLOC_CONF is
    ignored by 2.9.1, so it is used only from 2.12 on. Never both: versions differ in which one wins.
    """
    return "PYTORCH_ALLOC_CONF" if accepts(torch, "PYTORCH_ALLOC_CONF") else "PYTORCH_CUDA_ALLOC_CONF"


def has_fused(optimizer: str, torch: TorchBounds) -> bool:
    """Whether an optimizer of torch.optim takes `fused=True` on a GPU in every version that this can be; the others
    raise TypeError for the keyword."""
    name = f"torch.optim.{optimizer.removeprefix('torch.optim.')}(fused)"
    return name in _BY_NAME and accepts(torch, name)
