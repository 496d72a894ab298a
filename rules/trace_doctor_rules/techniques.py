"""The techniques that findings recommend, each written once: what it is, the edit that makes it, how it is written by
hand and in the frameworks, and what could go wrong. Rules add where it applies and how to verify it.

Safety follows what was measured: nothing here is `safe` without a test that shows the same losses bit by bit.
"""

from __future__ import annotations

from typing import Any

from trace_doctor import Fix, Target

_LAST_BITS = "results differ in the last bits"
_MEMORY = "record the memory again: the peak has fallen and this finding is gone"


def _patch(title: str, codemod: str, text: str, risk: str, verify: str, **more: Any) -> Fix:
    return Fix(title=title, kind="patch", codemod=codemod, text=text, risk=risk, verify=verify, **more)


def _advice(title: str, text: str, risk: str, verify: str, **more: Any) -> Fix:
    return Fix(title=title, kind="advice", safety="display", text=text, risk=risk, verify=verify, **more)


# ---------------------------------------------------------------------- where it runs


def one_image(dockerfile: str, verify: str, *, torch: str, cuda: str) -> Fix:
    """`dockerfile`: one with the captured versions, for people who have none."""
    return _patch(
        "Run all ranks from one image",
        "pin-container",
        dockerfile,
        "the driver is the host's: it has to be new enough for the image's CUDA",
        verify,
        safety="display",
        params={"torch": torch, "cuda": cuda},
    )


# ---------------------------------------------------------------------- data


def pinned_copies(verify: str, target: Target | None = None) -> Fix:
    return _patch(
        "Copy batches from pinned memory without waiting",
        "pinned-copies",
        "loader = DataLoader(..., pin_memory=True)\nx = x.to(device, non_blocking=True)\n"
        "# Accelerate: DataLoaderConfiguration(non_blocking=True); Lightning: pin_memory=True of the loader is enough",
        "pinned memory cannot be swapped; never do the same on the way back without a synchronise",
        verify,
        safety="safe",
        target=target,
    )


def persistent_workers(verify: str, workers: int | None = None, target: Target | None = None) -> Fix:
    """`workers`: how many there are, where the capture says so."""
    return _patch(
        "Keep the worker processes from epoch to epoch",
        "dataloader-args",
        "DataLoader(..., num_workers=4, persistent_workers=True)   # HF: dataloader_persistent_workers=True",
        "the dataset object of a worker lives on: what it changes in itself lasts from epoch to epoch",
        verify,
        params={"persistent_workers": True, **({"num_workers": workers} if workers else {})},
        target=target,
    )


def shard_iterable(verify: str) -> Fix:
    return _patch(
        "With an IterableDataset: let each worker take its share first",
        "shard-iterable",
        "def __iter__(self):\n    samples = self.read()\n    info = torch.utils.data.get_worker_info()\n"
        "    if info is not None:\n"
        "        samples = itertools.islice(samples, info.id, None, info.num_workers)\n    yield from samples",
        "without this every worker delivers the whole dataset",
        verify,
        safety="display",
    )


# ---------------------------------------------------------------------- host


def sum_on_device(verify: str, risk: str, target: Target | None) -> Fix:
    return _patch(
        "Keep running sums on the device",
        "sum-on-device",
        "total = 0.0\nfor step, batch in enumerate(loader):\n    ...\n"
        "    total += loss.detach()          # no wait\nprint(float(total) / len(loader))   # one wait for all",
        risk,
        verify,
        target=target,
    )


def create_on_device(verify: str, target: Target | None = None) -> Fix:
    return _patch(
        "Create the tensor where it is used",
        "tensor-device",
        "mask = torch.zeros(n, device=x.device)   # instead of torch.zeros(n).to(device)",
        "random numbers of the device differ from those of the CPU",
        verify,
        target=target,
    )


def make_once(verify: str, target: Target | None = None) -> Fix:
    return _advice(
        "Or make it once, before the loop",
        'self.register_buffer("mask", torch.ones(n).tril(), persistent=False)   # moves with the module\n'
        "weights = torch.tensor(class_weights, device=device)                  # above the loop, not in it",
        "only for values that are the same in every step",
        verify,
        target=target,
    )


def off_the_step(verify: str, what: str = "other", target: Target | None = None) -> Fix:
    """`what`: checkpoint, evaluation, log, data, garbage or other."""
    title, text, risk = _OFF_THE_STEP[what]
    return _advice(title, text, risk, verify, target=target)


_OFF_THE_STEP = {
    "checkpoint": (
        "Write checkpoints beside the training",
        "future = torch.distributed.checkpoint.async_save(state, checkpoint_id=path)   # 2.4 and later\n"
        "# or copy to pinned memory and let a thread write; or write less often",
        "the state must be copied before the next optimizer step changes it; what is not written yet is lost on a crash",
    ),
    "evaluation": (
        "Evaluate less often",
        "if step % 500 == 0:\n    evaluate(model)   # HF: eval_steps=500; Lightning: val_check_interval=500",
        "the best step is seen later",
    ),
    "log": (
        "Log every N steps, from a thread",
        "if step % 50 == 0:\n    writer.add_scalar(...)   # HF: logging_steps=50; Lightning: log_every_n_steps=50\n"
        "# logging.handlers.QueueHandler writes files from another thread",
        "curves have fewer points",
    ),
    "data": (
        "Prepare data in the loader's workers",
        "DataLoader(dataset, collate_fn=prepare, num_workers=4)   # tokenize, decode and augment there\n"
        "# or once, before the training: datasets.Dataset.map(tokenize, batched=True)",
        "workers have random states of their own",
    ),
    "garbage": (
        "Collect garbage when it suits",
        "gc.disable()                # before the loop\nif step % 500 == 0:\n    gc.collect()\n# or gc.freeze() after the first step",
        "reference cycles hold memory until then",
    ),
    "other": (
        "Do it less often, or beside the step",
        "if step % 100 == 0:\n    ...\n# or: executor = ThreadPoolExecutor(1); executor.submit(work, copies)",
        "a thread shares Python's lock: only work that releases it (files, NumPy, sockets) runs beside the loop",
    ),
}  # fmt: skip


def vectorise(verify: str, target: Target | None = None) -> Fix:
    return _advice(
        "Do for the whole tensor what the loop does for its elements",
        "y = (x * w).sum(-1)                       # for i in range(n): y[i] = (x[i] * w[i]).sum()\n"
        "y = x[index]; y.index_add_(0, index, v)   # gather and scatter instead of x[i] in a loop\n"
        "f = torch.vmap(function)                  # where the body is a function of one element",
        f"{_LAST_BITS}; the whole result is in memory at once",
        verify,
        target=target,
    )


def cuda_graphs(verify: str) -> Fix:
    return _advice(
        "Or record the step as a CUDA graph by hand",
        "step = torch.cuda.make_graphed_callables(model, (sample,))   # forward and backward\n"
        "# or capture all of it: with torch.cuda.graph(g): ...; then g.replay() with the batch copied into fixed tensors",
        "shapes and control flow must be the same in every step; no waits for the device inside; inputs keep their place",
        verify,
    )


def fill_the_gpu(verify: str) -> Fix:
    return _advice(
        "Or give each launch more to do: a larger batch",
        "DataLoader(..., batch_size=<twice as many, as long as memory lasts>)   # HF: per_device_train_batch_size",
        "fewer and larger steps: the learning rate and its schedule have to follow",
        verify,
    )


# ---------------------------------------------------------------------- arithmetic


def autocast(verify: str, dtype: str = "bfloat16", target: Target | None = None) -> Fix:
    """`dtype`: bfloat16 (compute capability 8 and newer) or float16, which needs a GradScaler."""
    short = "bf16" if dtype == "bfloat16" else "fp16"
    lines = [
        f'with torch.autocast(device_type="cuda", dtype=torch.{dtype}):',
        "    loss = loss_fn(model(x), y)",
        f'# HF: TrainingArguments({short}=True); Accelerate: Accelerator(mixed_precision="{short}"); '
        f'Lightning: Trainer(precision="{short.removeprefix("fp")}-mixed")',
    ]
    if dtype == "float16":
        lines[2:2] = ["scaler.scale(loss).backward(); scaler.step(optimizer); scaler.update()"]
    return _patch(
        f"Compute in {short} where that is enough (autocast)",
        "autocast",
        "\n".join(lines),
        "losses differ from fp32: compare the curves of a run",
        verify,
        params={"dtype": dtype},
        target=target,
    )


def tf32(verify: str) -> Fix:
    return _patch(
        "Let fp32 products use TF32",
        "matmul-precision",
        'torch.set_float32_matmul_precision("high")   # HF: TrainingArguments(tf32=True)',
        "products keep ten bits of mantissa; never mix this with torch.backends...fp32_precision",
        verify,
    )


def channels_last(verify: str) -> Fix:
    return _patch(
        "Keep images and weights with the channels last",
        "channels-last",
        "model.to(memory_format=torch.channels_last)\nx = x.to(device, memory_format=torch.channels_last)",
        f"{_LAST_BITS}; layers without such a kernel convert back and forth",
        verify,
    )


def cudnn_benchmark(verify: str) -> Fix:
    return _patch(
        "Let cuDNN try its convolution algorithms",
        "set-config",
        "torch.backends.cudnn.benchmark = True   # Lightning: Trainer(benchmark=True)",
        "every new input shape is tried again and takes the largest workspace once; runs differ in the last bits",
        verify,
        params={"name": "torch.backends.cudnn.benchmark", "value": "True"},
    )


# ---------------------------------------------------------------------- attention


def use_sdpa(verify: str = _MEMORY, target: Target | None = None) -> Fix:
    return _patch(
        "Use scaled_dot_product_attention",
        "use-sdpa",
        "out = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)\n"
        '# HF: from_pretrained(..., attn_implementation="sdpa"); the score matrix is then never stored',
        "last bits differ, dropout draws other numbers; a mask needs two dimensions or more and the query's type",
        verify,
        target=target,
    )


def sdpa_backend(verify: str, target: Target | None = None) -> Fix:
    return _patch(
        "Ask for the flash kernel, which says why it refuses",
        "sdpa-backend",
        "with sdpa_kernel(SDPBackend.FLASH_ATTENTION):\n    out = F.scaled_dot_product_attention(q, k, v)",
        "raises where the kernel does not take the type, the mask or the head size",
        verify,
        params={"backends": ["FLASH_ATTENTION"]},
        safety="display",
        target=target,
    )


def attention_libraries(verify: str) -> Fix:
    return _advice(
        "Where a mask or a bias keeps SDPA from its fast kernels: another library's",
        "# FlexAttention (torch 2.5 and later): a mask or a bias as a function, fused by the compiler\n"
        "from torch.nn.attention.flex_attention import flex_attention\n"
        "attend = torch.compile(flex_attention)   # once, beside the model\n"
        "out = attend(q, k, v, score_mod=lambda score, b, h, i, j: score + bias[h, i, j])\n"
        "# xFormers: (batch, tokens, heads, size), where SDPA takes (batch, heads, tokens, size)\n"
        "from xformers.ops import LowerTriangularMask, memory_efficient_attention\n"
        "q, k, v = (t.transpose(1, 2) for t in (q, k, v))\n"
        "out = memory_efficient_attention(q, k, v, attn_bias=LowerTriangularMask()).transpose(1, 2)\n"
        "# TransformerEngine: the whole block, in fp8 on compute capability 8.9 and newer\n"
        "import transformer_engine.pytorch as te\n"
        "block = te.TransformerLayer(hidden_size, ffn_hidden_size, num_attention_heads)\n"
        "with te.fp8_autocast(enabled=True):\n"
        "    x = block(x)   # (tokens, batch, hidden_size)",
        "another dependency, other layouts and other parameter names in checkpoints",
        verify,
    )


# ---------------------------------------------------------------------- compile


def compile_model(verify: str, mode: str | None = None) -> Fix:
    given = f', mode="{mode}"' if mode else ""
    return _patch(
        "Compile the model",
        "compile-model",
        f"model = torch.compile(model{given})\n"
        '# HF: TrainingArguments(torch_compile=True); Accelerate: TorchDynamoPlugin(backend="inductor")',
        f"{_LAST_BITS}; the first steps compile; changing shapes compile again"
        + ("; outputs are overwritten by the next call (CUDA graphs)" if mode == "reduce-overhead" else ""),
        verify,
        params={"mode": mode} if mode else {},
    )


def compile_blocks(verify: str) -> Fix:
    return _patch(
        "Compile the repeated block once",
        "compile-blocks",
        "for block in model.layers:\n    block.compile()\n"
        "# Accelerate: TorchDynamoPlugin(use_regional_compilation=True)",
        f"{_LAST_BITS}; nothing is fused across blocks",
        verify,
    )


def compile_loss(verify: str) -> Fix:
    return _patch(
        "Compile the loss as well",
        "compile-loss",
        "loss_fn = torch.compile(loss_fn)   # or a function that calls model and loss, compiled as one",
        _LAST_BITS,
        verify,
    )


def mark_dynamic(
    verify: str, name: str, dim: int, target: Target | None = None, *, known: bool = True
) -> Fix:
    """`known`: the capture names the input; what is only part of one (`batch['ids']`) is said, not edited."""
    fix = _patch(
        "Or say which dimension changes",
        "mark-dynamic",
        f"torch._dynamo.mark_dynamic({name}, {dim})  # before the call of the compiled function",
        "raises where the compiled code needs that size to be one number",
        verify,
        params={"name": name, "dim": dim},
        safety="display",
        target=target,
    )
    return fix if known else _advice(fix.title, fix.text, fix.risk, verify)


def steady_shapes(verify: str) -> Fix:
    return _advice(
        "Keep shapes alike, or run the largest first",
        "def pad(batch, value, bucket=64):   # (batch, length); labels with -100, masks with 0\n"
        "    return torch.nn.functional.pad(batch, (0, -batch.shape[1] % bucket), value=value)\n\n"
        "# before the loop, a step with the largest shape: the allocator settles at its maximum at once\n"
        "largest = torch.zeros(batch_size, max_length, dtype=torch.long, device=device)\n"
        "loss_fn(model(largest), largest).backward()\n"
        "optimizer.zero_grad(set_to_none=True)\n"
        "# HF: DataCollatorWithPadding(tokenizer, pad_to_multiple_of=64)",
        "padding computes on what is then thrown away",
        verify,
    )


# ---------------------------------------------------------------------- memory


def keep_the_cache(verify: str, target: Target | None) -> Fix:
    return _patch(
        "Drop empty_cache() from the loop",
        "remove-call",
        "# delete torch.cuda.empty_cache(); HF Trainer: torch_empty_cache_steps=None",
        "the process keeps the memory, so that another process on this device sees less",
        verify,
        params={"call": "torch.cuda.empty_cache"},
        target=target,
    )


def release_output(verify: str, target: Target | None, *, inference: bool) -> Fix:
    if inference:
        return _advice(
            "Run inference without gradients",
            "with torch.inference_mode():\n    output = model(x)   # or torch.no_grad(); nothing is kept for a backward\n"
            "del output           # what the next call does not need, at the end of each round",
            "backward() through these outputs raises then",
            verify,
            target=target,
        )
    return _advice(
        "Let the step's outputs go before the next forward",
        "del output, loss     # at the end of the step; or put the step into a function, whose variables end with it\n"
        "losses.append(loss.detach())",
        "code behind the loop that reads the last output needs a copy of it",
        verify,
        target=target,
    )


def max_split_size(verify: str) -> Fix:
    return Fix(
        title="Where segments cannot grow: leave large blocks whole",
        kind="env",
        safety="display",
        text="PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512 python train.py",
        verify=verify,
        risk="cached blocks above that size wait for a request of their size: may cost memory where there is none",
    )


def chunked_loss(verify: str = _MEMORY, target: Target | None = None) -> Fix:
    return _patch(
        "Compute the loss in chunks, or with a fused kernel",
        "chunked-loss",
        "logits of all tokens and their fp32 log-softmax need tokens x vocabulary x 4 bytes each. Project and "
        "reduce a part of the tokens at a time (torchtune CEWithChunkedOutputLoss), or use Liger's "
        "FusedLinearCrossEntropy (HF: use_liger_kernel=True); keep logits in bf16 until then",
        f"{_LAST_BITS}; the projection to the vocabulary is computed twice",
        verify,
        target=target,
    )


def fused_optimizer(name: str | None, verify: str = _MEMORY) -> Fix:
    return _patch(
        "Use the fused optimizer: it needs no temporaries",
        "optimizer-args",
        f"torch.optim.{name or 'AdamW'}(..., fused=True)   # or foreach=False: slower, no temporaries\n"
        '# HF: TrainingArguments(optim="adamw_torch_fused")',
        "the last bits of updates differ; parameters must be floating point and on one of the supported devices",
        verify,
        params={"fused": True, "class": name} if name else {"fused": True},
    )


def foreach_optimizer(name: str, verify: str) -> Fix:
    return _patch(
        "Update all parameters at once",
        "optimizer-args",
        f"torch.optim.{name}(..., foreach=True)   # torch 2.0 and later take it by themselves on a GPU",
        "the last bits of updates differ; temporaries as large as the parameters",
        verify,
        params={"foreach": True, "class": name},
    )


def checkpoint_blocks(verify: str) -> Fix:
    return _patch(
        "Recompute activations in backward",
        "checkpoint-blocks",
        "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)   # for each repeated block\n"
        "# HF: gradient_checkpointing=True",
        "repeats the forward: about a third more compute for the blocks it covers",
        verify,
    )


def gradient_accumulation(verify: str, steps: int = 2) -> Fix:
    return _patch(
        "Or take smaller batches, and step after several of them",
        "gradient-accumulation",
        f"(loss / {steps}).backward()\nif (step + 1) % {steps} == 0:\n    optimizer.step()\n    optimizer.zero_grad()\n"
        f"# with 1/{steps} of the batch size; HF: gradient_accumulation_steps={steps}; "
        f"Lightning: accumulate_grad_batches={steps}",
        f"{_LAST_BITS}; batch norm sees the smaller batches; a scheduler steps once for {steps} batches",
        verify,
        params={"steps": steps},
        safety="display",
    )


def larger_batch(verify: str, size: int) -> Fix:
    return _patch(
        f"Take batches of {size}",
        "batch-size",
        f"DataLoader(..., batch_size={size})   # HF: per_device_train_batch_size={size}",
        "fewer and larger steps: the learning rate and its schedule have to follow",
        verify,
        params={"size": size},
    )


def raise_batch(verify: str, factor: int) -> Fix:
    return _advice(
        f"Take larger batches: up to {factor} times as large",
        f"DataLoader(..., batch_size={factor} * batch_size)   # HF: per_device_train_batch_size, and accumulate less\n"
        "# double it first, and compare samples per second",
        "fewer and larger steps: the learning rate and its schedule have to follow",
        verify,
    )


def less_optimizer_state(verify: str) -> Fix:
    return _patch(
        "Keep less optimizer state",
        "replace-optimizer",
        'an 8-bit optimizer (bitsandbytes AdamW8bit, HF optim="adamw_bnb_8bit"), Adafactor, or with several ranks ZeRO / '
        "FSDP, which shares the state among them; DeepSpeed offload (offload_optimizer: cpu) keeps it on the host",
        "other update rules or rounding: check the loss curve; bitsandbytes has to be installed",
        verify,
        params={"to": "adamw-8bit"},
        safety="display",
    )


def offload(verify: str) -> Fix:
    return _patch(
        "Keep optimizer state on the host",
        "deepspeed-zero",
        'DeepSpeed: "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true}}\n'
        "FSDP2: fully_shard(model, offload_policy=CPUOffloadPolicy())   # torch.distributed.fsdp, torch 2.6",
        "every step copies gradients and parameters over PCIe; the update runs on the CPU",
        verify,
        params={"offload_optimizer": True, "stage": 2},
        safety="display",
    )


# ---------------------------------------------------------------------- several ranks


def no_sync(verify: str) -> Fix:
    return _patch(
        "Exchange accumulated gradients once",
        "no-sync",
        "with nullcontext() if is_last_microbatch else model.no_sync():\n    loss_fn(model(x), y).backward()\n"
        "# FSDP2: model.set_requires_gradient_sync(is_last_microbatch)",
        f"{_LAST_BITS}; gradients stay in memory unreduced between the micro-batches",
        verify,
    )


def ddp_arguments(verify: str) -> Fix:
    return _patch(
        "Let DistributedDataParallel reduce in place, over a graph that does not change",
        "set-call-args",
        "model = DistributedDataParallel(model, ..., gradient_as_bucket_view=True, static_graph=True)",
        "static_graph needs the same parameters to be used in every step; detach_() on gradients fails with views",
        verify,
        params={
            "callee": "torch.nn.parallel.DistributedDataParallel",
            "args": {"gradient_as_bucket_view": "True", "static_graph": "True"},
            "remove": ["find_unused_parameters"],
        },
    )


def prefetch_shards(verify: str) -> Fix:
    return _advice(
        "Gather the parameters of the next block while this one computes",
        "FSDP2: for a, b in zip(blocks, blocks[1:]): a.set_modules_to_forward_prefetch([b])\n"
        "       for a, b in zip(blocks[1:], blocks): a.set_modules_to_backward_prefetch([b])\n"
        "FSDP1: FullyShardedDataParallel(..., forward_prefetch=True, backward_prefetch=BackwardPrefetch.BACKWARD_PRE,\n"
        "       limit_all_gathers=True)\n"
        "Wrap whole transformer blocks: units too small to hide the next gather leave it exposed. Between nodes: "
        "hybrid sharding (a 2-D device mesh) gathers inside a node only; bf16 parameters halve what is sent",
        "each prefetched block holds its parameters longer: the peak rises by one block",
        verify,
    )


def overlap_collective(verify: str) -> Fix:
    return _advice(
        "Start the collective earlier and wait where its result is needed",
        "work = dist.all_reduce(x, async_op=True)\n...                      # compute that does not need x\nwork.wait()\n"
        "Tensor parallel: sequence parallelism and async tensor parallel (torch._inductor.config._micro_pipeline_tp) "
        "split the product so that parts of it run beside the exchange; all-to-all: exchange half a batch at a time",
        "buffers of pending collectives must not be written before wait()",
        verify,
    )


def fully_shard(verify: str) -> Fix:
    return _patch(
        "Share parameters, gradients and optimizer state among the ranks",
        "fully-shard",
        "for block in model.layers:\n    fully_shard(block)\nfully_shard(model)   # before the optimizer is made; torch 2.6\n"
        '# Accelerate: FullyShardedDataParallelPlugin(fsdp_version=2); HF: fsdp="full_shard"; '
        'DeepSpeed: "zero_optimization": {"stage": 3}',
        f"{_LAST_BITS}; checkpoints hold shards; each block's parameters are gathered in every pass",
        verify,
    )


def zero(verify: str, stage: int = 2) -> Fix:
    """`stage`: 1 shares optimizer state among the ranks, 2 gradients too, 3 parameters too."""
    return _patch(
        f"Share state among the ranks with DeepSpeed (ZeRO stage {stage})",
        "deepspeed-zero",
        f'"zero_optimization": {{"stage": {stage}}}   # in the configuration of DeepSpeed\n'
        f"# Accelerate: deepspeed_config: zero_stage: {stage}; "
        "plain PyTorch, stage 1: torch.distributed.optim.ZeroRedundancyOptimizer(params, torch.optim.AdamW, lr=...)",
        f"{_LAST_BITS}; checkpoints of stage 3 hold shards",
        verify,
        params={"stage": stage},
        framework="deepspeed",
    )


def data_parallel(verify: str) -> Fix:
    return _advice(
        "One process a GPU: DistributedDataParallel",
        "# started by: torchrun --nproc-per-node=gpu train.py\n"
        'local_rank = int(os.environ["LOCAL_RANK"])\n'
        'torch.cuda.set_device(local_rank)\ntorch.distributed.init_process_group("nccl")\n'
        "model = DistributedDataParallel(model.to(local_rank), device_ids=[local_rank])\n"
        "loader = DataLoader(..., sampler=DistributedSampler(dataset))   # and sampler.set_epoch(epoch)",
        "the batch size is then the one of each process",
        verify,
    )


def grouped_gemm(verify: str, target: Target | None = None) -> Fix:
    return _advice(
        "Multiply all experts at once",
        "order = expert.argsort()   # expert: the number of each token's expert\n"
        "ends = torch.bincount(expert, minlength=len(experts)).cumsum(0).to(torch.int32)\n"
        "weights = torch.stack([e.weight.t() for e in experts])   # better one parameter from the start\n"
        "found = torch._grouped_mm(x[order], weights, offs=ends)   # 2.8 and later, bf16\n"
        "out = torch.empty_like(found)\n"
        "out[order] = found\n"
        "# as many tokens for each expert: torch.bmm over the stacked weights\n"
        "# or MegaBlocks (dMoE), or TransformerEngine: te.GroupedLinear(len(experts), in_features, out_features)",
        "the stacked weights have other names in checkpoints",
        verify,
        target=target,
    )
