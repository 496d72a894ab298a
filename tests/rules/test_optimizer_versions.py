"""TD304 offers what the torch of the capture has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from trace_doctor.capture import Capture
from trace_doctor.evidence.base import Facts
from trace_doctor.model import TorchVersion
from trace_doctor.rule import Context
from trace_doctor_rules.kernels.single_tensor_optimizer import SingleTensorOptimizer

OLD, FOREACH, FUSED = "Upgrade to PyTorch 2", "Set foreach=True", "Set fused=True"


@pytest.mark.parametrize(
    ("optimizer", "least", "most", "titles"),
    [
        ("AdamW with foreach=False", "1.13", "1.13", [OLD, FOREACH]),
        ("AdamW with foreach=False", "1.13", "2.3", [FUSED]),
        ("AdamW with foreach=False", None, None, [FUSED]),
        ("Adagrad, of which most GPUs' torch has no fused form", "2.12", None, [FUSED]),
        ("Adagrad, of which most GPUs' torch has no fused form", "2.4", None, [FOREACH]),
    ],
)
def test_no_form_is_advised_that_the_torch_of_the_capture_does_not_have(
    optimizer: str, least: str | None, most: str | None, titles: list[str]
) -> None:
    built = next(c for c in SingleTensorOptimizer.INVALID if c.name == optimizer).build()
    run = replace(built.run(), torch_version=TorchVersion(min=least, max=most))  # type: ignore[union-attr]
    rule = SingleTensorOptimizer()
    (claim,) = rule.check(Context(Facts(Capture(0, run)), rule))
    assert len(claim.fixes) == len(titles)
    assert all(fix.title.startswith(title) for fix, title in zip(claim.fixes, titles, strict=True))
