"""The savings that the kernel rules claim: where from, how much at most, and which bytes."""

from __future__ import annotations

import re
from dataclasses import fields

import pytest

from trace_doctor.config import Settings
from trace_doctor.errors import NotCaptured
from trace_doctor.model import Saving
from trace_doctor.rule import Rule
from trace_doctor.testing import claims_of
from trace_doctor_rules.kernels.fp32_matmul import Fp32Matmul
from trace_doctor_rules.kernels.many_small_gemms import ManySmallGemms
from trace_doctor_rules.kernels.underfilled_gpu import UnderfilledGpu
from trace_doctor_rules.kernels.unfused_attention import UnfusedAttention


def saving(rule: type[Rule], case: str, *, gpu_bytes: int | None = None) -> Saving:
    built = next(c for c in rule.INVALID if c.name == case).build()
    if gpu_bytes is not None:
        built.meta["deviceProperties"][0]["totalGlobalMem"] = gpu_bytes
    (claim,) = claims_of(rule(), built)
    assert claim.saving is not None
    return claim.saving


@pytest.mark.parametrize(
    ("rule", "case", "said"),
    [
        (Fp32Matmul, "sgemm on an A100", "67% of 800 µs kernel time per step: 3× as fast"),
        (
            Fp32Matmul,
            "the host is the limit",
            "; capped at the 4.6 µs that the step gains without these kernels",
        ),
        (ManySmallGemms, "on a CPU", " operator time per step: one batched GEMM"),
    ],
)
def test_a_model_says_what_it_takes_away_and_what_the_replay_leaves_of_it(
    rule: type[Rule], case: str, said: str
) -> None:
    assert said in saving(rule, case).how


def test_a_model_that_the_replay_confirms_is_not_capped() -> None:
    assert "capped" not in saving(Fp32Matmul, "sgemm on an A100").how


@pytest.mark.parametrize(
    ("case", "gpu_bytes", "kept"),
    [
        ("with its backward", 1 << 30, True),
        ("with its backward", 4 * 64 * 512 * 512 * 2, True),
        ("with its backward", 1 << 20, False),  # not all of them are kept then
        ("with its backward", 0, True),  # the device's size is not known
        ("written out", 1 << 30, False),  # no backward that needs them
    ],
)
def test_score_matrices_are_saved_where_a_forward_keeps_them(case: str, gpu_bytes: int, kept: bool) -> None:
    found = saving(UnfusedAttention, case, gpu_bytes=gpu_bytes)
    assert found.bytes == (4 * 64 * 512 * 512 * 2 if kept else None)
    assert ("score matrices" in found.how) == kept


def test_a_setting_that_is_advised_is_one() -> None:
    case = next(c for c in UnderfilledGpu.VALID if c.name == "memory of unknown size")
    with pytest.raises(NotCaptured) as missing:
        claims_of(UnderfilledGpu(), case.build())
    advised = re.search(r"setting ([a-z-]+)", missing.value.capture or "")
    assert advised is not None
    assert advised.group(1).replace("-", "_") in {f.name for f in fields(Settings)}
