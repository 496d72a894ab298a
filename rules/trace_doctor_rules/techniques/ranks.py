"""Several ranks, and the machines they run on."""

from __future__ import annotations

from trace_doctor import Fix
from trace_doctor_rules._shared import LAST_BITS, advice, advised, patch, patched

no_sync = patched(
    "Use no_sync() while accumulating gradients",
    "no-sync",
    "with nullcontext() if is_last_microbatch else model.no_sync():\n    loss_fn(model(x), y).backward()\n"
    "# FSDP2: model.set_requires_gradient_sync(is_last_microbatch)",
    f"{LAST_BITS}; unreduced gradients stay allocated between the micro-batches",
)
"""An edit for gradient accumulation: one all-reduce for several backward passes."""
ddp_buckets = advised(
    "Set bucket_cap_mb",
    "model = DistributedDataParallel(model, ..., bucket_cap_mb=8)   # a bucket is reduced as soon as its gradients are ready\n"
    "# smaller ones start earlier, larger ones need fewer calls (the default is 25 MiB): try 4 to 100",
    LAST_BITS,
)
"""Advice for gradients that DistributedDataParallel reduces when backward is nearly over, or in too many calls."""
ddp_fewer_bytes = advised(
    "Use bf16_compress_hook",
    "from torch.distributed.algorithms.ddp_comm_hooks import default_hooks\n"
    "model.register_comm_hook(None, default_hooks.bf16_compress_hook)\n"
    "# between nodes: NCCL_DEBUG=INFO says whether NCCL uses InfiniBand or sockets",
    "gradients are summed in bf16: compare the losses",
)
"""Advice for gradients whose all-reduce takes longer than the backward pass that could overlap it."""
prefetch_shards = advised(
    "Prefetch the shards of the next block",
    "FSDP2: for a, b in zip(blocks, blocks[1:]): a.set_modules_to_forward_prefetch([b])\n"
    "       for a, b in zip(blocks[1:], blocks): a.set_modules_to_backward_prefetch([b])\n"
    "FSDP1: FullyShardedDataParallel(..., forward_prefetch=True, backward_prefetch=BackwardPrefetch.BACKWARD_PRE,\n"
    "       limit_all_gathers=True)\n"
    "Wrap whole transformer blocks: too small units do not overlap the next all-gather. Between nodes: "
    "hybrid sharding (a 2-D device mesh) gathers within a node only; bf16 parameters halve the bytes",
    "prefetched parameters are allocated longer: the peak grows by one block",
)
"""Advice for FSDP, whose all-gathers are exposed."""
overlap_in_deepspeed = advised(
    "Set overlap_comm in DeepSpeed",
    '"zero_optimization": {"overlap_comm": true, "contiguous_gradients": true,   # in the configuration of DeepSpeed\n'
    '    "reduce_bucket_size": 5e8, "allgather_bucket_size": 5e8,\n'
    '    "stage3_prefetch_bucket_size": 5e7}   # stage 3: parameters of the next layers are prefetched',
    "buckets take memory of their size",
)
"""Advice for jobs whose states DeepSpeed shards."""


_CALLS = {
    "all-reduce": "dist.all_reduce(x, async_op=True)",
    "all-gather": "dist.all_gather_into_tensor(out, x, async_op=True)",
    "reduce-scatter": "dist.reduce_scatter_tensor(out, x, async_op=True)",
    "all-to-all": "dist.all_to_all_single(out, x, async_op=True)",
    "expert dispatch": "dist.all_to_all_single(out, x, async_op=True)   # DeepEP: dispatch(..., async_finish=True)",
    "expert combine": "dist.all_to_all_single(out, x, async_op=True)   # DeepEP: combine(..., async_finish=True)",
    "broadcast": "dist.broadcast(x, src, async_op=True)",
    "send and receive": "dist.isend(x, next_stage)",
}
_BESIDES = {
    "all-to-all": "# half a batch at a time: one half communicates while the other computes",
    "send and receive": "# a pipeline: more micro-batches, or an interleaved or zero-bubble schedule (torch.distributed.pipelining)",
}
_BESIDES |= dict.fromkeys(("expert dispatch", "expert combine"), _BESIDES["all-to-all"])
_TORCHREC = (
    "; TorchRec: TrainPipelineSparseDist",
    "; TorchRec's pipeline, which runs already, overlaps the exchange of inputs alone",
)
_ALL_REDUCE = "# gradients: DistributedDataParallel reduces them in buckets while backward runs, not one by one after it"


def overlap_collective(verify: str, kind: str = "all-reduce", *, pipelined: bool = False) -> Fix:
    """Advice for collectives that the script starts itself; `kind`: of the collective, as people call it. `pipelined`: whether
    TorchRec's pipeline runs already."""
    torchrec = _TORCHREC[pipelined] if kind == "all-to-all" else ""
    return advice(
        "Start the collective asynchronously",
        f"work = {_CALLS.get(kind, _CALLS['all-reduce'])}\n...                      # compute that does not need it\nwork.wait()\n"
        f"{_BESIDES.get(kind, _ALL_REDUCE)}{torchrec}",
        "buffers of pending collectives must not be written before wait()",
        verify,
    )


_SEQUENCE_PARALLEL = (
    "# sequence parallelism: reduce-scatter and all-gather in place of the all-reduce, and norms on 1/N of the tokens\n"
    "#   torch: SequenceParallel() for the norms, RowwiseParallel(output_layouts=Shard(1)); Megatron: --sequence-parallel\n"
)
_IN_TRAINING = (
    "# async tensor parallel, on top of it, splits each GEMM so that its parts overlap with communication\n"
    "#   torch.compile with torch._inductor.config._micro_pipeline_tp = True; Megatron: --tp-comm-overlap\n"
)
_IN_INFERENCE = (
    "# the inference engine's own all-reduce for small messages (vLLM: leave disable_custom_all_reduce off)\n"
)


def split_layers(
    verify: str, kind: str = "all-reduce", ranks: int | None = None, *, trains: bool = True
) -> Fix:
    """Advice for collectives inside tensor-parallel layers, whose next kernel needs their result. `ranks`: of the group, where known."""
    degree = f" (now {ranks})" if ranks else ""
    return advice(
        "Reduce the tensor-parallel degree, or its collectives",
        "# the next kernel needs the result: starting the collective earlier is no way out\n"
        f"tensor_model_parallel_size = <smaller>{degree}: fewer ranks per layer, all on one NVLink domain, the rest data parallel\n"
        + (_SEQUENCE_PARALLEL if kind == "all-reduce" and trains else "")
        + (_IN_TRAINING if trains else _IN_INFERENCE)
        + "# fewer, larger collectives: larger micro-batches; attention and MLP in parallel share one per layer",
        "fewer ranks per layer hold more of its weights each: memory rises",
        verify,
    )


fully_shard = advised(
    "Use fully_shard()",
    "for block in model.layers:\n    fully_shard(block)\nfully_shard(model)   # before the optimizer is made; torch 2.6\n"
    '# Accelerate: FullyShardedDataParallelPlugin(fsdp_version=2); HF: fsdp="full_shard"; '
    'DeepSpeed: "zero_optimization": {"stage": 3}',
    f"{LAST_BITS}; checkpoints hold shards; each block's parameters are gathered in every pass",
)
"""Advice: each rank holds 1/N of parameters, gradients and optimizer state; checkpoints and clipping change with it."""


def zero(verify: str, stage: int = 2) -> Fix:
    """`stage`: 1 shards optimizer state over the ranks, 2 gradients too, 3 parameters too."""
    return patch(
        f"Use DeepSpeed ZeRO stage {stage}",
        "deepspeed-zero",
        f'"zero_optimization": {{"stage": {stage}}}   # in the configuration of DeepSpeed\n'
        f"# Accelerate: deepspeed_config: zero_stage: {stage}; "
        "plain PyTorch, stage 1: torch.distributed.optim.ZeroRedundancyOptimizer(params, torch.optim.AdamW, lr=...)",
        f"{LAST_BITS}; checkpoints of stage 3 hold shards",
        verify,
        params={"stage": stage},
        framework="deepspeed",
    )


data_parallel = advised(
    "Use DistributedDataParallel",
    "# started by: torchrun --nproc-per-node=gpu train.py\n"
    'local_rank = int(os.environ["LOCAL_RANK"])\n'
    'torch.cuda.set_device(local_rank)\ntorch.distributed.init_process_group("nccl")\n'
    "model = DistributedDataParallel(model.to(local_rank), device_ids=[local_rank])\n"
    "loader = DataLoader(..., sampler=DistributedSampler(dataset))   # and sampler.set_epoch(epoch)",
    "the batch size is then per process",
)
"""Advice for nn.DataParallel, which copies the model in every step."""
grouped_gemm = advised(
    "Use grouped GEMM",
    "order = expert.argsort()   # expert: the number of each token's expert\n"
    "ends = torch.bincount(expert, minlength=len(experts)).cumsum(0).to(torch.int32)\n"
    "weights = torch.stack([e.weight.t() for e in experts])   # better one parameter from the start\n"
    "found = torch._grouped_mm(x[order], weights, offs=ends)   # 2.8 and later, bf16\n"
    "out = torch.empty_like(found)\n"
    "out[order] = found\n"
    "# as many tokens for each expert: torch.bmm over the stacked weights\n"
    "# or MegaBlocks (dMoE), or TransformerEngine: te.GroupedLinear(len(experts), in_features, out_features)",
    "the stacked weights have other names in checkpoints",
)
"""Advice for mixtures of experts: one grouped GEMM for all of a layer."""


def one_image(dockerfile: str, verify: str) -> Fix:
    """`dockerfile`: one with the captured versions."""
    return advice(
        "Use one container image",
        dockerfile,
        "the driver is the host's: it must be new enough for the image's CUDA",
        verify,
    )
