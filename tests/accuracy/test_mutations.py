"""Faults planted in real healthy captures are found, grow with their dose, and claim what was planted."""

from __future__ import annotations

import gzip
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trace_doctor import analyze
from trace_doctor.model import Finding

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "sample_traces/dataloader_starvation/cpu/healthy/rank0.light.json.gz"
DLRM = "traces/facebookresearch_HolisticTraceAnalysis/control_control.json.gz"
"""six steps of 77 ms; the loader delivers at once and the GPU has nothing to do at that moment"""
MEGATRON = "traces/astra-sim_astra-sim/*megatron_kineto_*.json"

_spec = importlib.util.spec_from_file_location("mutations", ROOT / "bench/accuracy/mutations.py")
assert _spec is not None and _spec.loader is not None
mutations = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(mutations)


def _read(path: Path) -> dict[str, Any]:
    packed = path.read_bytes()
    document: dict[str, Any] = json.loads(gzip.decompress(packed) if path.suffix == ".gz" else packed)
    return document


def _findings(
    document: dict[str, Any], events: list[dict[str, Any]], folder: Path, *codes: str
) -> list[Finding]:
    path = folder / "trace.json"
    path.write_text(json.dumps({**document, "traceEvents": events}), encoding="utf-8")
    return [f for f in analyze(path).findings if f.code.startswith(codes)]


@pytest.mark.parametrize(
    ("plant", "code"),
    [(mutations.stretched_loader, "TD101"), (mutations.driver_calls, "TD409")],
    ids=["loader", "driver calls"],
)
def test_host_time_that_is_planted_is_what_the_finding_claims(
    plant: Callable[..., Any], code: str, captures_dir: Path, tmp_path: Path
) -> None:
    document = _read(captures_dir / DLRM)
    assert not _findings(document, document["traceEvents"], tmp_path, "TD1", "TD4"), "healthy as recorded"
    for us in (5_000, 40_000):
        events, places = plant(document["traceEvents"], us)
        assert places == 6
        [finding] = _findings(document, events, tmp_path, "TD1", "TD4")
        assert finding.code == code
        assert finding.saving is not None
        assert finding.saving.time_us_per_step == pytest.approx(us, rel=0.05)


def test_a_slower_loader_without_a_gpu_claims_as_much_more(tmp_path: Path) -> None:
    document = _read(SAMPLE)
    assert not _findings(document, document["traceEvents"], tmp_path, "TD1")
    claimed = []
    for us in (20_000, 40_000, 80_000):
        events, _ = mutations.stretched_loader(document["traceEvents"], us)
        [finding] = _findings(document, events, tmp_path, "TD1")
        assert finding.code == "TD101"
        assert finding.saving is not None
        claimed.append(finding.saving.time_us_per_step or 0.0)
    assert claimed[1] - claimed[0] == pytest.approx(20_000, rel=0.05)
    assert claimed[2] - claimed[1] == pytest.approx(40_000, rel=0.05)


def test_a_rank_that_comes_later_is_named_for_as_much_more(captures_dir: Path, tmp_path: Path) -> None:
    documents = [_read(path) for path in sorted(captures_dir.glob(MEGATRON))]
    claimed = []
    for us in (0, 5_000):
        ranks, places = mutations.late_rank([d["traceEvents"] for d in documents], 0, us)
        assert places == 32
        for rank, (document, events) in enumerate(zip(documents, ranks, strict=True)):
            text = json.dumps({**document, "traceEvents": events})
            (tmp_path / f"rank{rank}.json").write_text(text, encoding="utf-8")
        [finding] = [f for f in analyze(tmp_path).findings if f.code == "TD602"]
        assert finding.message.startswith("Rank")
        assert "0" in finding.message.split(" cause")[0]
        assert finding.saving is not None
        claimed.append(finding.saving.time_us_per_step or 0.0)
    # Ranks 0 and 6 are late; nobody else waits less for what is added to one of them.
    assert claimed[1] - claimed[0] == pytest.approx(places * 5_000, rel=0.05)
