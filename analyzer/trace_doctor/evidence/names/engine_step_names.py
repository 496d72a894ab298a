"""What inference engines call their steps: the kind of a step and what it holds, by the grammars of their annotations.

Sources: vLLM (22496, 37524), SGLang (24911), ATOM, xDiT, TensorRT-LLM, and public captures of the first four.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, NamedTuple

EngineKind = Literal["prefill", "decode", "mixed", "running", "diffusion", "idle", "capture", "other"]
ServingKind = Literal["prefill", "decode", "mixed", "running", "diffusion", "other"]
SERVING_KINDS: tuple[ServingKind, ...] = ("prefill", "decode", "mixed", "running", "diffusion", "other")
"""kinds that work on requests; `running`: requests seen before, of which the name does not say what is done with them"""


class EngineStepName(NamedTuple):
    """What the name of a step says; None where it does not."""

    kind: EngineKind
    prefills: int | None = None
    """requests of which the prompt is computed"""
    decodes: int | None = None
    """requests that get their next token"""
    tokens: int | None = None

    @property
    def requests(self) -> int | None:
        """In the batch; None where the name does not say."""
        known = [n for n in (self.prefills, self.decodes) if n is not None]
        return sum(known) if known else None


_NUMBER = r"(\d{1,9})"
_OLDER_VLLM = re.compile(rf"execute_new_{_NUMBER}_cached_{_NUMBER}")
_VLLM = re.compile(
    rf"execute_(?:{_NUMBER}_)?context_{_NUMBER}\((?:sq)?{_NUMBER}\w*\)_generation_{_NUMBER}\((?:sq)?{_NUMBER}\w*\)"
)
_SGLANG = re.compile(r"step\[([A-Z_]+)((?: \w+=[^\s\]]+)*)\]")
_ATOM = re.compile(rf"(prefill|decode|mixed)\[bs={_NUMBER}(?:/\d+)?(?: tok={_NUMBER})?(?: .*)?\]")
_TENSORRT_LLM = re.compile(rf"\[Executor\] _forward_step \d+: {_NUMBER} ctx reqs, {_NUMBER} gen reqs")
_XDIT = re.compile(rf"execute_diffusion_{_NUMBER}_\d+x\d+")
_CAPTURE = re.compile(r"capture_\d+_[A-Z_]+")
_SGLANG_KINDS: dict[str, EngineKind] = {
    "EXTEND": "prefill", "SPLIT_PREFILL": "prefill", "PREBUILT": "other", "DECODE": "decode", "MIXED": "mixed",
    "IDLE": "idle", "DUMMY_FIRST": "idle",
}  # fmt: skip


GENERATE_PREFILL, GENERATE_DECODE, DENOISING = "generate(): prefill", "generate(): decode", "denoising step"
"""labels of steps that nothing marks (`trace.generation_marks`)"""
_UNMARKED = {
    GENERATE_PREFILL: EngineStepName("prefill"),
    GENERATE_DECODE: EngineStepName("decode"),
    DENOISING: EngineStepName("diffusion"),
}


def step_of_label(label: str) -> EngineStepName | None:
    """What the label of a step says, be it an annotation or one of those above; None for all others."""
    return engine_step(label) or _UNMARKED.get(label)


@lru_cache(4096)
def engine_step(name: str) -> EngineStepName | None:
    """What the annotation of an engine step says; None for all other names."""
    return next((step for read in _GRAMMARS if (step := read(name)) is not None), None)


def is_engine_step(name: str) -> bool:
    """The annotation that an inference engine puts around a step, dummy steps and graph captures included."""
    return engine_step(name) is not None


def _by_counts(prefills: int, decodes: int, tokens: int) -> EngineStepName:
    kind: EngineKind = (
        "mixed" if prefills and decodes else "prefill" if prefills else "decode" if decodes else "idle"
    )
    return EngineStepName(kind, prefills, decodes, tokens)


def _older_vllm(name: str) -> EngineStepName | None:
    if (match := _OLDER_VLLM.fullmatch(name)) is None:
        return None
    new, cached = map(int, match.groups())
    kind: EngineKind = "mixed" if new and cached else "prefill" if new else "running" if cached else "idle"
    return EngineStepName(kind, new, cached)


def _vllm(name: str) -> EngineStepName | None:
    if (match := _VLLM.fullmatch(name)) is None:
        return None
    _, prefills, prompt, decodes, generated = (int(n or 0) for n in match.groups())
    return _by_counts(prefills, decodes, prompt + generated)


def _sglang(name: str) -> EngineStepName | None:
    if (match := _SGLANG.fullmatch(name)) is None:
        return None
    said = dict(part.split("=", 1) for part in match.group(2).split())
    kind = _SGLANG_KINDS.get(match.group(1), "other")
    size, tokens = _count(said.get("bs")), _count(said.get("toks"))
    if kind == "decode":
        return EngineStepName(kind, 0, size, tokens if tokens is not None else size)
    if kind == "mixed":
        return EngineStepName(kind, _count(said.get("c")), _count(said.get("g")), tokens)
    return (
        EngineStepName(kind, size, 0, tokens)
        if kind == "prefill"
        else EngineStepName(kind, None, size, tokens)
    )


def _count(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and len(text) < 10 else None


def _atom(name: str) -> EngineStepName | None:
    if (match := _ATOM.fullmatch(name)) is None:
        return None
    kind, size, tokens = match.group(1), int(match.group(2)), _count(match.group(3))
    if kind == "mixed":
        return EngineStepName("mixed", None, None, tokens)
    return (
        EngineStepName("decode", 0, size, tokens)
        if kind == "decode"
        else EngineStepName("prefill", size, 0, tokens)
    )


def _tensorrt_llm(name: str) -> EngineStepName | None:
    if (match := _TENSORRT_LLM.fullmatch(name)) is None:
        return None
    prefills, decodes = map(int, match.groups())
    return _by_counts(prefills, decodes, 0)._replace(tokens=None)


def _xdit(name: str) -> EngineStepName | None:
    match = _XDIT.fullmatch(name)
    return EngineStepName("diffusion", int(match.group(1)), 0) if match is not None else None


def _capture(name: str) -> EngineStepName | None:
    return EngineStepName("capture") if _CAPTURE.fullmatch(name) is not None else None


_GRAMMARS: tuple[Callable[[str], EngineStepName | None], ...] = (
    _vllm, _sglang, _atom, _tensorrt_llm, _older_vllm, _xdit, _capture,
)  # fmt: skip
