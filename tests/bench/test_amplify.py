"""Large traces made from small ones: the same text, the same ledger, and nothing shared between the copies."""

from __future__ import annotations

import gzip
import importlib.util
import sys
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from trace_doctor.capture import Capture
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.idle.time_ledger import TimeLedger
from trace_doctor.evidence.trace.launches import Launches
from trace_doctor.evidence.trace.nesting import Nesting
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.loaders.kineto.trace import load_trace
from trace_doctor.run import Run
from trace_doctor.testing import RunBuilder

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = [
    ROOT / "sample_traces" / name / "cpu" / "fault" / "rank0.light.json.gz"
    for name in ("dataloader_starvation", "graph_break_two", "recompile_shapes")
]
COPIES = 3


@pytest.fixture(scope="module")
def bench() -> ModuleType:
    spec = importlib.util.spec_from_file_location("amplify", ROOT / "bench" / "amplify.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["amplify"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def read(path: Path) -> Run:
    return load_trace(path, path.name)


def facts(run: Run) -> Facts:
    return Facts(Capture(rank=0, run=run))


def gpu_trace(folder: Path) -> Path:
    builder = RunBuilder(stacks=True)
    for _ in range(4):
        with builder.step():
            builder.loader(300)
            for _ in range(5):
                with builder.op("aten::mm"):
                    builder.launch(80, "sgemm")
    return builder.write(folder / "gpu.json")


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda p: p.parents[2].name)
def test_one_copy_is_the_original_byte_for_byte(bench: ModuleType, sample: Path, tmp_path: Path) -> None:
    bench.amplify(sample, tmp_path / "one.json", copies=1)
    assert (tmp_path / "one.json").read_bytes() == gzip.decompress(sample.read_bytes())


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda p: p.parents[2].name)
def test_copies_add_up_to_as_many_ledgers(bench: ModuleType, sample: Path, tmp_path: Path) -> None:
    bench.amplify(sample, tmp_path / "big.json", copies=COPIES)
    small, big = read(sample), read(tmp_path / "big.json")
    spans = 1  # the profiler's own, which describes the capture
    assert len(big) - spans == COPIES * (len(small) - spans)
    assert len(big.memory) == COPIES * len(small.memory)
    assert big.warnings == small.warnings and big.recorded == small.recorded

    few, many = facts(small), facts(big)
    assert len(many[Steps].steps) == COPIES * len(few[Steps].steps)
    labels = [step.label for step in many[Steps].steps]
    assert len(set(labels)) == len(labels)
    total = {
        p: [parts(f, p) for f in (few, many)] for p in ("compute", "data_loading", "optimizer", "compile")
    }
    assert all(many_ns == COPIES * few_ns for few_ns, many_ns in total.values()), total
    assert (
        np.bincount(many[Nesting].depth + 1)[1:] == COPIES * np.bincount(few[Nesting].depth + 1)[1:]
    ).all()


def parts(of: Facts, part: str) -> int:
    """One part of the ledger over all phases: what lies between two copies is in none of those asked for."""
    return sum(
        row.compute_ns if part == "compute" else int(getattr(row.idle_ns, part))
        for row in of[TimeLedger].rows
    )


def test_no_two_copies_share_an_id(bench: ModuleType, tmp_path: Path) -> None:
    source = gpu_trace(tmp_path)
    bench.amplify(source, tmp_path / "big.json", copies=COPIES)
    small, big = read(source), read(tmp_path / "big.json")
    for ids in ("correlation", "external_id"):
        few, many = (np.unique(getattr(run, ids)) for run in (small, big))
        assert len(many[many > 0]) == COPIES * len(few[few > 0])
    before, after = facts(small)[Launches], facts(big)[Launches]
    assert len(after.launch) == COPIES * len(before.launch) and (after.launch >= 0).all()
    delay = big.ts[big.gpu] - big.ts[after.launch]
    assert delay.max() == (small.ts[small.gpu] - small.ts[before.launch]).max(), "launched from another copy"


def test_step_marks_can_be_few_and_long(bench: ModuleType, tmp_path: Path) -> None:
    bench.amplify(SAMPLES[1], tmp_path / "long.json", copies=10, marks=3)
    run = read(tmp_path / "long.json")
    steps = facts(run)[Steps].steps
    assert len(steps) == 3 and len({step.label for step in steps}) == 3
    assert all(a.end <= b.start for a, b in pairwise(steps))
    assert steps[-1].end - steps[0].start > 0.9 * (int(run.end.max()) - int(run.ts.min()))


def test_size_and_compression(bench: ModuleType, tmp_path: Path) -> None:
    bench.amplify(SAMPLES[1], tmp_path / "big.json", bytes_=bench.size("20MB"))
    assert (tmp_path / "big.json").stat().st_size == pytest.approx(20e6, rel=0.15)
    bench.amplify(SAMPLES[1], tmp_path / "big.json.gz", bytes_=bench.size("20MB"))
    assert gzip.decompress((tmp_path / "big.json.gz").read_bytes()) == (tmp_path / "big.json").read_bytes()
