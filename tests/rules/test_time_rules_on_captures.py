"""TD101 and TD201 on real captures: what they must say, and where they must be silent."""

from __future__ import annotations

from pathlib import Path

import pytest

from trace_doctor.capture import Capture
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.idle.data_loading import DataLoading
from trace_doctor.loaders.kineto.trace import load_trace
from trace_doctor.rule import Claim, Context, Rule
from trace_doctor_rules.data.dataloader_starvation import DataLoaderStarvation
from trace_doctor_rules.host._host_device_sync_evidence import SyncSites
from trace_doctor_rules.host.host_device_sync import HostDeviceSync

pytestmark = pytest.mark.captures

RESNET_0 = "pytorch_kineto/resnet50_num_workers_0_worker0.1623143089861.pt.trace.json.gz"
RESNET_4 = "pytorch_kineto/resnet50_num_workers_4_worker0.1623212756351.pt.trace.json.gz"
OWL = "AMD-AGI_TraceLens/h100_google_owlv2-large-patch14-ensemble__1016001.json.gz"


def facts_of(path: Path) -> Facts:
    return Facts(Capture(rank=0, run=load_trace(path, path.name)))


def claims(rule: Rule, facts: Facts) -> list[Claim]:
    """Like the engine; empty where the rule abstains."""
    try:
        for kind in rule.needs:
            facts[kind]
        return list(rule.check(Context(facts, rule)))
    except NotCaptured:
        return []


@pytest.mark.parametrize(("file", "share"), [(RESNET_0, 0.33), (OWL, 0.40)])
def test_a_training_process_that_loads_its_own_batches(captures_dir: Path, file: str, share: float) -> None:
    (claim,) = claims(DataLoaderStarvation(), facts_of(captures_dir / "traces" / file))
    assert claim.confidence == "high"
    assert claim.saving is not None
    assert claim.saving.basis == "replay"
    assert claim.saving.share_of_step == pytest.approx(share, abs=0.01)
    assert claim.location.file
    first = claim.fixes[0]
    if file == OWL:  # a pipeline's own preprocessing: it takes no workers
        assert (first.kind, len(claim.fixes)) == ("advice", 1)
        return
    assert first.codemod == "dataloader-args"
    assert first.params == {
        "num_workers": 2,
        "pin_memory": True,
        "persistent_workers": True,
    }


def test_the_twin_with_workers_is_sound(captures_dir: Path) -> None:
    assert not claims(DataLoaderStarvation(), facts_of(captures_dir / "traces" / RESNET_4))


def test_no_capture_with_workers_is_blamed_with_confidence(trace_facts: Facts) -> None:
    loading = trace_facts.get(DataLoading)
    if loading is None or "workers" not in loading.kinds:
        pytest.skip("no loader with workers")
    assert all(c.confidence == "low" for c in claims(DataLoaderStarvation(), trace_facts))


def test_waits_that_cost_nothing_are_no_finding(trace_facts: Facts) -> None:
    """Captures wait in many places; in none would one place less have shortened the step by 3 %, or be certain to."""
    sites = trace_facts.get(SyncSites)
    if sites is None or not len(sites.rows):
        pytest.skip("nothing waits for the GPU")
    assert not claims(HostDeviceSync(), trace_facts)
