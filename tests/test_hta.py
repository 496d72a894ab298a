"""HolisticTraceAnalysis over our columns gives what it gives over its own."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import trace_doctor
from trace_doctor.errors import TraceDoctorError
from trace_doctor.hta import to_hta
from trace_doctor.hta.critical_path import usable
from trace_doctor.run import Run
from trace_doctor.testing import RunBuilder

ANALYSES = [
    ("get_temporal_breakdown", {"visualize": False}),
    ("get_gpu_kernel_breakdown", {"visualize": False}),
    ("get_comm_comp_overlap", {"visualize": False}),
    ("get_idle_time_breakdown", {"visualize": False}),
    ("get_cuda_kernel_launch_stats", {"visualize": False}),
    ("get_queue_length_summary", {}),
    ("get_memory_bw_summary", {}),
]
CAPTURES = [
    "pytorch_kineto/resnet50_num_workers_0_worker0.1623143089861.pt.trace.json.gz",
    "luatil_torch-profile/trace_05.json.gz",
    "facebookresearch_HolisticTraceAnalysis/nccl_parser_config_nccl_data.json.gz",
    "facebookresearch_param/dlrm_kineto_worker0_step_12.1694128201545.pt.trace.json",
]


@pytest.fixture
def hta() -> Iterator[Any]:
    analysis = pytest.importorskip("hta.trace_analysis", reason="HolisticTraceAnalysis is not installed")
    logging.disable(logging.ERROR)
    yield analysis.TraceAnalysis
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("capture", CAPTURES)
def test_its_analyses_give_the_same_as_over_its_own_parsing(
    capture: str, hta: Any, captures_dir: Path
) -> None:
    file = captures_dir / "traces" / capture
    run = trace_doctor.load(file)
    assert isinstance(run, Run)
    ours, theirs = to_hta(run), hta(trace_files={run.rank: str(file)}, trace_dir="/")
    assert len(ours.t.traces[run.rank]) == len(theirs.t.traces[run.rank])
    for name, options in ANALYSES:
        mine, its = (_tables(partial(getattr(a, name), **options)) for a in (ours, theirs))
        assert len(mine) == len(its), name
        for one, other in zip(mine, its, strict=True):
            pd.testing.assert_frame_equal(
                one.reset_index(drop=True), other.reset_index(drop=True), check_dtype=False, rtol=1e-6
            )


def _tables(analyse: Callable[[], Any]) -> list[Any]:
    """The DataFrames of a result; none where HTA itself gives up."""
    try:
        result = analyse()
    except ValueError:
        return []
    parts = result if isinstance(result, tuple) else [result]
    tables = [table for part in parts for table in (part.values() if isinstance(part, dict) else [part])]
    return [table for table in tables if table is not None]


def test_several_ranks_become_one_analysis(hta: Any) -> None:
    analysis = to_hta(*(_rank(rank) for rank in (1, 0)))
    assert analysis.t.get_ranks() == [0, 1]
    assert analysis.get_comm_comp_overlap(visualize=False)["comp_comm_overlap_pctg"].tolist() == [0.0, 0.0]


def test_one_rank_twice_is_refused(hta: Any) -> None:
    with pytest.raises(TraceDoctorError, match="one trace per rank"):
        to_hta(_rank(0), _rank(0))


def test_without_hta_it_is_said_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "hta.common.trace", None)
    with pytest.raises(TraceDoctorError, match=r"trace-doctor\[hta\]"):
        to_hta(_rank(0))


def _rank(rank: int) -> Run:
    b = RunBuilder(rank=rank, world_size=2)
    for _ in range(3):
        with b.step():
            with b.op("aten::mm"):
                b.launch(100, "sgemm")
            b.launch(50, "ncclDevKernel_AllReduce")
            b.sync()
    return b.run()


@pytest.mark.parametrize(
    "fails", ["raise RuntimeError('boom\\nbang')", "raise SystemExit(0)", "import absent_module"]
)
def test_a_package_that_fails_at_its_import_is_one_error_of_ours(
    fails: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "hta").mkdir()
    (tmp_path / "hta" / "__init__.py").write_text(fails)
    monkeypatch.syspath_prepend(tmp_path)
    for name in [name for name in sys.modules if name.partition(".")[0] == "hta"]:
        monkeypatch.delitem(sys.modules, name)
    for act in (usable, to_hta):
        with pytest.raises(TraceDoctorError, match="HolisticTraceAnalysis"):
            act()
