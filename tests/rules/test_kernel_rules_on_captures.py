"""The kernel rules on real captures: what they must say, where they must be silent, and what they lose without shapes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from trace_doctor.capture import Capture
from trace_doctor.config import defaults
from trace_doctor.engine.findings import severity
from trace_doctor.engine.rule_runs import Verdict, one_owner, run_rules
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.compute.kernels import Kernels
from trace_doctor.evidence.idle.time_ledger import TimeLedger
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.loaders.kineto.trace import load_trace
from trace_doctor.model import Recorded
from trace_doctor.registry import all_rules
from trace_doctor.run import Cat
from trace_doctor.testing import RunBuilder, SnapshotBuilder, captures_of
from trace_doctor_rules.kernels.fp32_matmul import Fp32Matmul
from trace_doctor_rules.kernels.layout_conversions import LayoutConversions
from trace_doctor_rules.kernels.many_small_gemms import ManySmallGemms
from trace_doctor_rules.kernels.unfused_attention import UnfusedAttention
from trace_doctor_rules.kernels.zeroed_gradients import ZeroedGradients
from trace_doctor_rules.memory.retained_gradients import RetainedGradients

KERNEL_RULES = [rule() for rule in all_rules() if rule.code.startswith("TD3")]
OWL = "AMD-AGI_TraceLens/h100_google_owlv2-large-patch14-ensemble__1016001.json.gz"
MEGATRON = "astra-sim_astra-sim/ab5d3e62_megatron-tp8_megatron_kineto_1.json"
RESNET_4 = "pytorch_kineto/resnet50_num_workers_4_worker0.1623212756351.pt.trace.json.gz"
CNN = "DarthShoge_Crypto_CNN/f69fc461_trace.json"
BERT = "AMD-AGI_TraceLens/h100_gaunernst_bert-small-uncased__1016001.json.gz"
MIOPEN = "AMD-AGI_TraceLens/mi300_resnet_act_checkpoint.json.gz"


def verdicts(path: Path) -> dict[str, Verdict]:
    facts = Facts(Capture(rank=0, run=load_trace(path, path.name)))
    return {v.rule.code: v for v in run_rules(facts, KERNEL_RULES)}


def fired(found: dict[str, Verdict]) -> set[str]:
    return {code for code, v in found.items() if v.outcome == "fired"}


def levels(found: dict[str, Verdict]) -> set[str]:
    settings = defaults().settings
    return {severity(v.rule, c, settings) for v in found.values() for c in v.claims}


@pytest.mark.captures
@pytest.mark.parametrize("number", ["04", "05", "06"])
def test_a_busy_gpu_with_fp32_products_gets_a_note_and_nothing_else(captures_dir: Path, number: str) -> None:
    found = verdicts(captures_dir / f"traces/luatil_torch-profile/trace_{number}.json.gz")
    assert fired(found) == {"TD301"}
    assert levels(found) == {"info"}
    assert "6" in found["TD301"].claims[0].message.split("%")[0][-2:]


@pytest.mark.captures
@pytest.mark.parametrize(
    ("file", "code", "part"),
    [
        (OWL, "TD303", "180 times per step"),
        (MEGATRON, "TD303", "40 times per step"),
        (RESNET_4, "TD305", "97 MiB"),
        (RESNET_4, "TD304", "484 operators"),
        (CNN, "TD307", "3 convolutions"),
        (BERT, "TD302", "30522"),
        (MIOPEN, "TD306", "22%"),
    ],
)
def test_what_is_in_the_raw_events_is_found(captures_dir: Path, file: str, code: str, part: str) -> None:
    found = verdicts(captures_dir / "traces" / file)[code]
    assert [c for c in found.claims if part in c.message], [c.message for c in found.claims]


@pytest.mark.captures
def test_a_healthy_run_gets_no_warning(captures_dir: Path) -> None:
    assert levels(verdicts(captures_dir / "traces" / RESNET_4)) == {"info"}


@pytest.mark.captures
@pytest.mark.parametrize("file", [OWL, MEGATRON, BERT, MIOPEN])
def test_the_kernels_of_a_capture_are_those_of_its_ledger(captures_dir: Path, file: str) -> None:
    """Kernels side by side count twice here, so their sum is never less than what the ledger calls compute."""
    path = captures_dir / "traces" / file
    facts = Facts(Capture(rank=0, run=load_trace(path, path.name)))
    kernels = facts[Kernels]
    row = facts[TimeLedger].row(kernels.device, "steady")
    assert row is not None
    assert row.compute_ns <= kernels.total <= 1.2 * row.compute_ns
    assert sum(ns for _, _, ns in kernels.by_name(kernels.ns > 0)) == kernels.total


@pytest.mark.captures
def test_planted_conversions_are_found_and_cost_what_was_planted(captures_dir: Path) -> None:
    """Of a GPU that is never idle every second, then every pointwise kernel is made a conversion."""
    path = captures_dir / "traces/luatil_torch-profile/trace_05.json.gz"
    run = load_trace(path, path.name)
    pointwise = run.named(lambda n: "elementwise_kernel" in n or n.startswith("triton_"), Cat.KERNEL)
    claimed = []
    for every in (2, 1):
        names = run.name.copy()
        names[pointwise[::every]] = len(run.names)
        planted = replace(
            run, name=names, names=[*run.names, "void cudnn::ops::nchwToNhwcKernel<float, float>"]
        )
        facts = Facts(Capture(rank=0, run=planted))
        (verdict,) = run_rules(facts, [LayoutConversions()])
        (claim,) = verdict.claims
        kernels = facts[Kernels]
        steps = facts[Steps]
        share = kernels.ns[kernels.where(lambda c: c.kind == "layout")].sum() / (steps.step_ns * steps.count)
        assert claim.saving is not None
        assert claim.saving.share_of_step == pytest.approx(share, rel=0.05)
        claimed.append(claim.saving.share_of_step)
    assert claimed[0] < claimed[1]


def _attention() -> RunBuilder:
    """The case of the rule, with shapes."""
    return next(c for c in UnfusedAttention.INVALID if c.name == "with its backward").build()


def _experts() -> RunBuilder:
    return next(c for c in ManySmallGemms.INVALID if c.name == "experts").build()


@pytest.mark.parametrize(
    ("build", "code", "outcome"), [(_attention, "TD303", "fired"), (_experts, "TD309", "skipped")]
)
def test_without_shapes_a_rule_loses_detail_or_abstains(
    build: Callable[[], RunBuilder], code: str, outcome: str
) -> None:
    full = captures_of(build())[0]
    assert full.run is not None
    assert next(v for v in run_rules(Facts(full), KERNEL_RULES) if v.rule.code == code).outcome == "fired"
    bare = replace(full, run=replace(full.run, recorded=Recorded(shapes=False)))
    found = next(v for v in run_rules(Facts(bare), KERNEL_RULES) if v.rule.code == code)
    assert found.outcome == outcome
    assert all(c.saving is None or c.saving.bytes is None for c in found.claims)


def test_model_savings_are_never_more_than_a_note() -> None:
    """Whatever the share: a model knows what could be, not what is lost."""
    settings = defaults().settings
    for rule in (Fp32Matmul(), UnfusedAttention(), ManySmallGemms()):
        for case in rule.INVALID:
            facts = Facts(captures_of(case.build())[0])
            (verdict,) = run_rules(facts, [rule])
            assert {severity(rule, c, settings) for c in verdict.claims} == {"info"}


def test_the_gradients_that_zero_grad_fills_belong_to_the_rule_that_saw_them_in_memory() -> None:
    """With a snapshot beside the trace there is one finding: what it holds in memory, and the time that filling takes."""
    snapshot = SnapshotBuilder()
    snapshot.train(4, zero_grad="to_zero")
    facts = Facts(captures_of((ZeroedGradients.INVALID[0].build(), snapshot))[0])
    of_time, of_memory = one_owner(run_rules(facts, [ZeroedGradients(), RetainedGradients()]))
    assert (of_time.outcome, of_time.refers_to) == ("passed", ("TD404",))
    (claim,) = of_memory.claims
    assert claim.saving is not None
    assert claim.saving.bytes and claim.saving.time_us_per_step
    assert claim.removal is not None
