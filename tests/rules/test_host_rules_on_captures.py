"""The data and host rules on real captures, and who owns a fault that two of them see."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

from trace_doctor import analyze
from trace_doctor.capture import Capture
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Facts
from trace_doctor.loaders.kineto.trace import load_trace
from trace_doctor.model import Result
from trace_doctor.rule import Claim, Context, Rule
from trace_doctor_rules.compile.compile_not_used import CompileNotUsed
from trace_doctor_rules.data.cpu_tensor_then_copy import CpuTensorThenCopy
from trace_doctor_rules.data.pageable_copies import PageableCopies
from trace_doctor_rules.data.worker_restart import WorkerRestart
from trace_doctor_rules.host.launch_bound import LaunchBound
from trace_doctor_rules.host.slow_launch_thread import SlowLaunchThread
from trace_doctor_rules.host.tensor_indexing_loop import TensorIndexingLoop

RULES = (
    CompileNotUsed,
    CpuTensorThenCopy,
    LaunchBound,
    PageableCopies,
    SlowLaunchThread,
    TensorIndexingLoop,
    WorkerRestart,
)
RESNET = "pytorch_kineto/resnet50_num_workers_4_worker0.1623212756351.pt.trace.json.gz"
HEALTHY = (
    "luatil_torch-profile/trace_04.json.gz",
    "luatil_torch-profile/trace_05.json.gz",
    "luatil_torch-profile/trace_06.json.gz",
)
SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"


def claims(rule: Rule, path: Path) -> list[Claim]:
    """Like the engine; empty where the rule abstains."""
    facts = Facts(Capture(rank=0, run=load_trace(path, path.name)))
    try:
        for kind in rule.needs:
            facts[kind]
        return list(rule.check(Context(facts, rule)))
    except NotCaptured:
        return []


@pytest.mark.captures
@pytest.mark.parametrize("file", HEALTHY)
def test_a_busy_gpu_is_left_in_peace(captures_dir: Path, file: str) -> None:
    for rule in RULES:
        assert not claims(rule(), captures_dir / "traces" / file), rule.code


@pytest.mark.captures
def test_what_stacks_slow_down_is_a_hint_at_most(captures_dir: Path) -> None:
    """18 % of the step idles for host work, behind pageable copies, with stacks recorded: without them most of it is gone."""
    path = captures_dir / "traces" / RESNET
    assert not claims(LaunchBound(), path)
    (copies,) = claims(PageableCopies(), path)
    assert copies.severity == "info"


@pytest.mark.captures
@pytest.mark.parametrize(
    ("rule", "file", "share", "says"),
    [
        (
            LaunchBound,
            "facebookresearch_HolisticTraceAnalysis/nccl_parser_config_nccl_data.json.gz",
            0.44,
            "900 launches per step",
        ),
        (PageableCopies, "pytorch_benchmark/cce09c0b_trace2.json", 0.48, "32 ms"),
        (CpuTensorThenCopy, "cuda-mode_profiling-cuda-in-torch/28711acf_trace.json", 0.97, "aten::randn"),
        (
            SlowLaunchThread,
            "AMD-AGI_TraceLens/h100_facebook_timesformer-base-finetuned-k400__1016002.json.gz",
            0.57,
            "preprocess() (transformers",
        ),
    ],
)
def test_what_raw_events_show(
    captures_dir: Path, rule: type[Rule], file: str, share: float, says: str
) -> None:
    (claim,) = claims(rule(), captures_dir / "traces" / file)
    assert says in claim.message
    assert claim.saving is not None
    assert claim.saving.basis == "replay"
    assert claim.saving.share_of_step == pytest.approx(share, abs=0.02)


@pytest.mark.captures
def test_pinned_copies_are_no_finding_whatever_they_take(captures_dir: Path) -> None:
    """99 % of this benchmark's step copies from pinned memory."""
    assert not claims(PageableCopies(), captures_dir / "traces" / "pytorch_benchmark/cce09c0b_trace.json")


@functools.cache
def result(scenario: str) -> Result:
    return analyze(SAMPLES / scenario / "simulated" / "fault")


@pytest.mark.parametrize(
    ("scenario", "owner", "others"),
    [
        ("worker_restart", "TD103", ("TD101", "TD203")),
        ("cpu_tensor_then_copy", "TD104", ("TD102", "TD203")),
        ("launch_bound", "TD202", ("TD503", "TD203")),
        ("pageable_copies", "TD102", ("TD101", "TD201")),
    ],
)
def test_one_rule_owns_a_fault(scenario: str, owner: str, others: tuple[str, ...]) -> None:
    found = [f.code for f in result(scenario).findings]
    assert found == [owner]
    assert not set(others) & set(found)


def test_who_yields_names_the_owner() -> None:
    outcomes = {o.code: o for o in result("launch_bound").outcomes}
    assert outcomes["TD503"].outcome == "passed"
    assert outcomes["TD503"].refers_to == ["TD202-1"]
