"""Which wrappers for several devices or ranks ran, as they mark themselves."""

from __future__ import annotations

import re
from typing import Self

from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.run import Cat

_DDP = re.compile(
    r"DistributedDataParallel\.forward|.*torch/nn/parallel/distributed\.py\(\d+\): .*|nn\.Module: DistributedDataParallel_\d+"
    r"|torch(?:::|\.)distributed(?:::|\.)(?:ddp(?:::|\.))?reducer::.*"
)
_FSDP = re.compile(
    r"FSDP::.*|fsdp::.*|FullyShardedDataParallel[.:].*|nn\.Module: (?:FullyShardedDataParallel|FSDP\w*)_\d+|.*torch/distributed/fsdp/fully_sharded_data_parallel\.py\(\d+\): .*"
    r"|.*torch/distributed/(?:_composable/fsdp|fsdp/_fully_shard)/\w+\.py\(\d+\): .*"
)
_DEEPSPEED = re.compile(
    r"nn\.Module: DeepSpeedEngine_\d+|DeepSpeed\w*[.:].*|.*deepspeed/runtime/\S+\.py\(\d+\): .*"
)
_DATA_PARALLEL = re.compile(
    r"DataParallel\.forward|.*torch/nn/parallel/(?:data_parallel|parallel_apply)\.py\(\d+\): .*|nn\.Module: DataParallel_\d+"
    r"|ReduceAddCoalesced|BroadcastBackward"
)
_SPARSE_PIPELINE = re.compile(r"## (?:start_|wait_)?sparse_data_dist\b.*")
"""as TorchRec's TrainPipelineSparseDist and what is derived from it mark their steps"""


class Parallelism(Evidence, frozen=True):
    """Raises NotCaptured without a trace."""

    ddp: bool
    """DistributedDataParallel"""
    fsdp: bool
    """FullyShardedDataParallel or fully_shard"""
    deepspeed: bool
    """DeepSpeed's engine, which shares state as its ZeRO stage says"""
    data_parallel: bool
    """DataParallel: threads of one process"""
    sparse_pipeline: bool
    """TorchRec's TrainPipelineSparseDist, which distributes the sparse features of the next batch meanwhile"""
    world_size: int | None
    """number of ranks of the job, where the file names it"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        run = facts.run

        def is_marked(pattern: re.Pattern[str]) -> bool:
            named = run.named(
                lambda name: pattern.fullmatch(name) is not None, Cat.USER_ANNOTATION, Cat.CPU_OP, Cat.PYTHON
            )
            return bool(len(named))

        return cls(
            ddp=is_marked(_DDP),
            fsdp=is_marked(_FSDP),
            deepspeed=is_marked(_DEEPSPEED),
            data_parallel=is_marked(_DATA_PARALLEL),
            sparse_pipeline=is_marked(_SPARSE_PIPELINE),
            world_size=run.meta.get("distributedInfo", {}).get("world_size") or None,
        )
