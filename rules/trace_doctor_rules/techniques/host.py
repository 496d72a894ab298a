"""Work of the host."""

from __future__ import annotations

from trace_doctor import Fix, Target
from trace_doctor_rules._shared import LAST_BITS, advice, advised, patched

create_on_device = patched(
    "Create the tensor on the GPU",
    "tensor-device",
    "mask = torch.zeros(n, device=x.device)   # instead of torch.zeros(n).to(device)",
    "random numbers of the device differ from those of the CPU",
)
"""An edit: fills on the device instead of filling, copying and freeing on the host."""
make_once = advised(
    "Create the tensor once, before the loop",
    'self.register_buffer("mask", torch.ones(n).tril(), persistent=False)   # moves with the module\n'
    "weights = torch.tensor(class_weights, device=device)                  # above the loop, not in it",
    "only for values that are the same in every step",
)
"""Advice for a tensor that is the same in every step."""
launches_do_not_wait = advised(
    "Unset CUDA_LAUNCH_BLOCKING",
    "unset CUDA_LAUNCH_BLOCKING   # in the shell, the job script, the container (ENV) or the launcher's configuration\n"
    "grep -rn LAUNCH_BLOCKING .   # a script may set it itself, through os.environ, before it imports torch\n"
    "# AMD: HIP_LAUNCH_BLOCKING and AMD_SERIALIZE_KERNEL. Not set: a debugger or another tool may hold the calls",
    "errors of kernels are reported at a later call: set it again to find one",
)
"""Advice for launch calls that return only when their kernel has ended."""


save_seldom = patched(
    "Save a checkpoint every 100 steps",
    "save-every-n",
    "if step % 100 == 0:\n    torch.save(state, path)   # HF: save_steps=100; Lightning: ModelCheckpoint(every_n_train_steps=100)",
    "after a crash up to 100 steps are run again; the file holds an older state, and that of the last steps is not saved",
    params={"every": 100},
)
"""An edit: the checkpoint that a line writes in each step is written in every hundredth."""


def off_the_step(verify: str, what: str = "other", target: Target | None = None) -> Fix:
    """`what`: checkpoint, evaluation, rollout, log, copy, data, garbage or other."""
    title, text, risk = _OFF_THE_STEP[what]
    return advice(title, text, risk, verify, target=target)


_OFF_THE_STEP = {
    "checkpoint": (
        "Checkpoint asynchronously",
        "future = torch.distributed.checkpoint.async_save(state, checkpoint_id=path)   # 2.4 and later\n"
        "# or copy to pinned memory and let a thread write; or write less often",
        "the state must be copied before the next optimizer step changes it; what is not written yet is lost on a crash",
    ),
    "evaluation": (
        "Evaluate less often",
        "if step % N == 0:\n    evaluate(model)   # HF: eval_steps=N; Lightning: val_check_interval=N",
        "the best step is seen later",
    ),
    "rollout": (
        "Batch the rollout",
        "envs = gym.vector.AsyncVectorEnv([make_env] * n)   # environments in processes of their own\n"
        "with torch.inference_mode():\n    action = policy(observations)   # one call for all of them",
        "more environments change the batches that are trained on",
    ),
    "log": (
        "Log every N steps, from another thread",
        "if step % N == 0:\n    writer.add_scalar(...)   # HF: logging_steps=N; Lightning: log_every_n_steps=N\n"
        "# logging.handlers.QueueHandler writes files from another thread",
        "curves have fewer points",
    ),
    "copy": (
        "Copy the next batch on a separate stream",
        "loader = DataLoader(..., pin_memory=True)\n"
        "with torch.cuda.stream(side):   # while this step computes\n"
        "    following = batch.to(device, non_blocking=True)\n"
        "torch.cuda.current_stream().wait_stream(side)   # before the next step reads it",
        "one batch more is on the GPU; call record_stream() on what the side stream made",
    ),
    "data": (
        "Preprocess data in DataLoader workers",
        "DataLoader(dataset, collate_fn=prepare, num_workers=4)   # tokenize, decode and augment there\n"
        "# or once, before the first step: datasets.Dataset.map(tokenize, batched=True)",
        "workers have random states of their own",
    ),
    "garbage": (
        "Schedule garbage collection",
        "gc.disable()                # before the loop\nif step % N == 0:\n    gc.collect()\n# or gc.freeze() after the first step",
        "reference cycles hold memory until then",
    ),
    "other": (
        "Run it less often, or in another thread",
        "if step % N == 0:\n    ...\n# or: executor = ThreadPoolExecutor(1); executor.submit(work, copies)",
        "a thread shares the GIL: only work that releases it (files, NumPy, sockets) runs alongside the loop",
    ),
}  # fmt: skip


vectorise = advised(
    "Vectorize the loop",
    "y = (x * w).sum(-1)                       # for i in range(n): y[i] = (x[i] * w[i]).sum()\n"
    "y = x[index]; y.index_add_(0, index, v)   # gather and scatter instead of x[i] in a loop\n"
    "f = torch.vmap(function)                  # where the body is a function of one element",
    f"{LAST_BITS}; the whole result is in memory at once",
)
"""Advice: one operator on the whole tensor for a loop over its elements."""
cuda_graphs = advised(
    "Capture a CUDA graph",
    "step = torch.cuda.make_graphed_callables(model, (sample,))   # forward and backward\n"
    "# or capture all of it: with torch.cuda.graph(g): ...; then g.replay() with the batch copied into fixed tensors",
    "shapes and control flow must be the same in every step; no synchronization inside; inputs keep their addresses",
)
"""Advice for steps of fixed shapes: all launches of a step become one."""
fill_the_gpu = advised(
    "Increase the batch size",
    "DataLoader(..., batch_size=<twice as many, as long as memory lasts>)   # HF: per_device_train_batch_size",
    "fewer and larger steps: the learning rate and its schedule have to follow",
)
"""Advice: the same launches for more samples; the learning rate has to follow."""
