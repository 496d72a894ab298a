"""Traces that lack a part of what the profiler records: it is missed, and what every capture may lack is not."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trace_doctor.testing import RunBuilder

Events = list[dict[str, Any]]
Change = Callable[[Events], Events]
Run = Callable[..., Any]


def _every(count: int, cat: str) -> Change:
    """Without each so many-th event of a category."""

    def thin(events: Events) -> Events:
        of_cat = [e for e in events if e["cat"] == cat]
        return [e for e in events if e["cat"] != cat or of_cat.index(e) % count]

    return thin


def _kernels_again(share: float) -> Change:
    """The kernels of that share of the steps a second time, in another stream."""

    def again(events: Events) -> Events:
        kernels = [e for e in events if e["cat"] == "kernel"]
        more = [{**e, "tid": 99, "args": {**e["args"], "stream": 99}} for e in kernels]
        return events + more[: int(share * len(more))]

    return again


def _emptied(first: int) -> Change:
    """Nothing but the marks from a step on."""

    def empty(events: Events) -> Events:
        begin = next(e["ts"] for e in events if e["name"] == f"ProfilerStep#{first}")
        return [e for e in events if e["ts"] < begin or e["name"].startswith("ProfilerStep#")]

    return empty


def _unmarked(events: Events) -> Events:
    return [e for e in events if e["name"] not in ("ProfilerStep#1", "ProfilerStep#3")]


def _short_marks(events: Events) -> Events:
    return [{**e, "dur": 80} if e["name"].startswith("ProfilerStep#") else e for e in events]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (_every(12, "kernel"), "the kernels of 15 of its 180 launches are missing"),
        (_every(60, "kernel"), ""),
        (_every(2, "cuda_runtime"), "the launches of 90 of its 180 kernels are missing"),
        (_every(4, "cuda_runtime"), ""),
        (_kernels_again(1), "180 of its 180 kernel launches have several kernels each"),
        (_kernels_again(0.01), ""),
        (_emptied(3), "holds 3 steps of 6 in which nothing was recorded"),
        (_unmarked, "operators and calls between its step markers"),
        (_short_marks, "operators and calls between its step markers"),
    ],
    ids=[
        "a twelfth of the kernels", "few kernels", "half of the launches", "a quarter of the launches", "kernels twice",
        "few kernels twice", "empty steps", "marks missing", "short marks",
    ],
)  # fmt: skip
def test_a_part_of_what_the_profiler_records_is_missing(
    logs: Path, run: Run, change: Change, why: str
) -> None:
    """Some of ROCm's kernels have no launch, and a few events are lost in any trace."""
    b = RunBuilder()
    for _ in range(6):
        with b.step():
            for _ in range(30):
                with b.op("aten::mm"):
                    b.launch(300, "bf16_gemm")
            b.runtime("cudaLaunchHostFunc", 5)  # which launches no kernel, in 3% of the calls
            b.idle_until_done()
    trace = b.write(logs / "rank0.pt.trace.json")
    assert run("check", "logs", "--fail-on", "never").code == 0
    content = json.loads(trace.read_text())
    content["traceEvents"] = change(content["traceEvents"])
    trace.write_text(json.dumps(content))
    done = run("check", "logs", "--fail-on", "never", "-o", "json")
    assert done.code == (3 if why else 0), done.result.gate.verdict
    assert not why or why in done.result.gate.verdict
