"""The traces of a simulated job."""

from __future__ import annotations

import json
from typing import Any

from simulated_jobs.programs import Job
from simulated_jobs.simulation import Communicate
from trace_doctor.testing.run_builder import RunBuilder

LEAD_US, LAUNCH_US = 8.0, 4.0
"""the host launches so long before, and so long"""
_NCCL = {
    "all-reduce": ("AllReduce", "allreduce"),
    "all-gather": ("AllGather", "_allgather_base"),
    "reduce-scatter": ("ReduceScatter", "_reduce_scatter_base"),
    "all-to-all": ("SendRecv", "all_to_allv"),
    "send": ("SendRecv", "send"),
    "receive": ("SendRecv", "recv"),
}


def traces(job: Job) -> tuple[RunBuilder, ...]:
    """One of each rank: kernels and collectives at the simulated times, each launched just before."""
    return tuple(_trace(job, rank) for rank in range(job.world))


def _trace(job: Job, rank: int) -> RunBuilder:
    b, line = RunBuilder(rank=rank, world_size=job.world), job.timelines[rank]
    begin = line.begin
    for n, end in enumerate(line.steps):
        b.events.append(
            _event(
                "user_annotation",
                f"ProfilerStep#{n}",
                begin / 1e3 - LEAD_US,
                (end - begin) / 1e3,
                100,
                100,
                {},
            )
        )
        begin = end
    for start, end, part in line.work:
        if part == "compute":
            _kernel(b, "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", start, end, 7, {})
        else:
            name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
            b.events.append(
                _event("user_annotation", name, start / 1e3, (end - start) / 1e3 - LEAD_US, 100, 100, {})
            )
    for op, start, end in line.collectives:
        name, called = _NCCL[op.kind]
        kernel = f"ncclDevKernel_{name}(ncclDevKernelArgsStorage<4096ul>)"
        _kernel(b, kernel, start, end, 20 + op.stream, _arguments(job, op, called))
    return b


def _arguments(job: Job, op: Communicate, called: str) -> dict[str, Any]:
    ranks = job.groups[op.group]
    return {
        "Collective name": called,
        "In msg nelems": op.size,
        "Group size": len(ranks),
        "Seq": op.seq,
        "Process Group Name": job.names[op.group],
        "Process Group Ranks": json.dumps(ranks),
    }


def _kernel(b: RunBuilder, name: str, start: int, end: int, stream: int, args: dict[str, Any]) -> None:
    link = {"correlation": len(b.events)}
    b.events.append(
        _event("cuda_runtime", "cudaLaunchKernel", start / 1e3 - LEAD_US, LAUNCH_US, 100, 100, link)
    )
    device = {"device": 0, "stream": stream, **link, **args}
    b.events.append(_event("kernel", name, start / 1e3, (end - start) / 1e3, 0, stream, device))


def _event(
    cat: str, name: str, ts: float, us: float, pid: int, tid: int, args: dict[str, Any]
) -> dict[str, Any]:
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": 1000 + ts,
        "dur": us,
        "args": args,
    }
