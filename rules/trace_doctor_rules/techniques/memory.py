"""Memory: what is allocated, for how long, and in what blocks."""

from __future__ import annotations

from trace_doctor import Fix, Target
from trace_doctor_rules._shared import LAST_BITS, LOWER_PEAK, advice, advised, patch, patched

keep_the_cache = patched(
    "Remove empty_cache()",
    "remove-call",
    "# delete torch.cuda.empty_cache(); HF Trainer: torch_empty_cache_steps=None",
    "the process keeps the memory, so that another process on this device sees less",
    params={"call": "torch.cuda.empty_cache"},
)
"""An edit: removes torch.cuda.empty_cache() from the loop."""


def release_output(verify: str, target: Target | None, *, inference: bool) -> Fix:
    """Advice. `inference`: no backward() follows the forward."""
    if inference:
        return advice(
            "Use inference_mode()",
            "with torch.inference_mode():\n    output = model(x)   # or torch.no_grad(); nothing is saved for backward\n"
            "del output           # what the next call does not need, at the end of each round",
            "backward() through these outputs raises an error",
            verify,
            target=target,
        )
    return advice(
        "Delete outputs before the next forward",
        "del output, loss     # at the end of the step; or put the step into a function, whose variables end with it\n"
        "losses.append(loss.detach())",
        "code after the loop that reads the last output needs a copy of it",
        verify,
        target=target,
    )


other_devices = advised(
    "Place layers on the other GPUs",
    'model = AutoModel.from_pretrained(name, device_map="balanced")   # accelerate spreads the layers\n'
    '# manually: move later layers with .to("cuda:1"), and their inputs in forward()',
    "activations are copied between devices; other processes may use those GPUs, which a snapshot does not show",
)
"""Advice: layers of the model on the devices of the process that are nearly empty."""


def max_split_size(verify: str) -> Fix:
    """Shown: an environment variable, for devices without expandable segments."""
    return Fix(
        title="Set max_split_size_mb",
        kind="env",
        safety="display",
        text="PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:512 python train.py",
        verify=verify,
        risk="larger cached blocks are not split: they may stay unused",
    )


chunked_loss = advised(
    "Compute the loss in chunks",
    "logits of all tokens and their fp32 log-softmax need tokens x vocabulary x 4 bytes each. Reduce a part of the "
    "tokens at a time (torchtune CEWithChunkedOutputLoss); keep logits in bf16 until then. Each chunk keeps its "
    "log-softmax for backward, unless it is in checkpoint()",
    LAST_BITS,
)
"""Advice: logits of one chunk of tokens exist at a time, not tokens x vocabulary."""
fused_loss = advised(
    "Fuse the output layer with the loss",
    "pass the hidden states and the output layer's weight to an operator that projects a part of the tokens at a time "
    "and computes their gradient at once: Liger's LigerFusedLinearCrossEntropyLoss (HF: use_liger_kernel=True). With "
    "FSDP the weight has to be gathered around the call",
    f"{LAST_BITS}; the model returns hidden states instead of logits",
)
"""Advice: the projection to the vocabulary and the loss in one operator, so that no logits are saved."""


def fused_optimizer(name: str | None, verify: str = LOWER_PEAK, *, on_gpu: bool = True) -> Fix:
    """An edit. `name`: the class in torch.optim, None where it is not known; `on_gpu`: where the parameters are."""
    beside = "or foreach=False: slower, no temporaries" if on_gpu else "on a CPU: torch 2.4 and later"
    return patch(
        "Set fused=True in the optimizer",
        "optimizer-args",
        f"torch.optim.{name or 'AdamW'}(..., fused=True)   # {beside}\n"
        '# HF: TrainingArguments(optim="adamw_torch_fused")',
        "updates are not bitwise identical; parameters must be floating point and on a supported device",
        verify,
        params={"fused": True, "class": name} if name else {"fused": True},
    )


newer_torch = advised(
    "Upgrade to PyTorch 2",
    "pip install 'torch>=2'   # optimizers default to foreach on a GPU",
    LAST_BITS,
)
"""Advice for a torch whose optimizers have no form that updates all parameters at once."""


def foreach_optimizer(name: str, verify: str) -> Fix:
    """An edit. `name`: the class in torch.optim."""
    return patch(
        "Set foreach=True in the optimizer",
        "optimizer-args",
        f"torch.optim.{name}(..., foreach=True)   # the default of torch 2.0 and later on a GPU",
        "updates are not bitwise identical; temporaries as large as the parameters",
        verify,
        params={"foreach": True, "class": name},
    )


update_together = advised(
    "Use _foreach_ ops",
    "torch.optim.AdamW(model.parameters(), lr=lr, fused=True)   # instead of an update in your own code, if there is one\n"
    "torch._foreach_lerp_(averages, parameters, 1 - decay)      # lists of tensors in one call\n"
    "update = torch.compile(update)                             # or compile the function that holds the loop",
    f"{LAST_BITS}; _foreach_ keeps temporaries as large as the tensors",
)
"""Advice for an update that is written out as a loop over parameters."""
update_in_place = advised(
    "Update parameters in place",
    "m.lerp_(grad, 1 - beta1)                              # in place of m = beta1 * m + (1 - beta1) * grad\n"
    "p.addcdiv_(m, v.sqrt().add_(eps), value=-lr)          # one temporary, not four\n"
    "# torch._foreach_…_: over some of the tensors at a time; or torch.optim.AdamW(..., fused=True), where the rule is one",
    LAST_BITS,
)
"""Advice for an update by hand whose temporaries are as large as the parameters."""
checkpoint_blocks = patched(
    "Use activation checkpointing",
    "checkpoint-blocks",
    "x = torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)   # for each repeated block\n"
    "# HF: gradient_checkpointing=True",
    "runs the forward again: about a third more compute for the blocks it covers",
)
"""An edit: activations of one block at a time, for about a third more compute."""
checkpoint_other_layers = advised(
    "Checkpoint the remaining layers too",
    "Some layers are checkpointed already; those in the table are not, and keep what they compute for backward. "
    'Wrap each of them (torchtitan: activation_checkpoint.mode = "full"; HF: gradient_checkpointing=True).',
    "runs the forward again: about a third more compute for the blocks it covers",
)
"""Advice, where some layers are checkpointed and others are not."""


def gradient_accumulation(verify: str, steps: int = 2) -> Fix:
    """Shown only: `steps` batches of 1/`steps` the size for each optimizer step."""
    return patch(
        "Accumulate gradients",
        "gradient-accumulation",
        f"(loss / {steps}).backward()\nif (step + 1) % {steps} == 0:\n    optimizer.step()\n    optimizer.zero_grad()\n"
        f"# with 1/{steps} of the batch size; HF: gradient_accumulation_steps={steps}; "
        f"Lightning: accumulate_grad_batches={steps}",
        f"{LAST_BITS}; batch norm sees smaller batches; a scheduler steps once per {steps} batches",
        verify,
        params={"steps": steps},
        safety="display",
    )


def raise_batch(verify: str, factor: int) -> Fix:
    """Advice where the batch size is not known. `factor`: how many times as large."""
    return advice(
        f"Increase batch size up to {factor}×",
        f"DataLoader(..., batch_size={factor} * batch_size)   # HF: per_device_train_batch_size, and accumulate less\n"
        "# double it first, and compare samples per second",
        "fewer and larger steps: the learning rate and its schedule must follow",
        verify,
    )


less_optimizer_state = patched(
    "Use an 8-bit optimizer",
    "replace-optimizer",
    'an 8-bit optimizer (bitsandbytes AdamW8bit, HF optim="adamw_bnb_8bit"), or with several ranks ZeRO / '
    "FSDP, which shards the state; DeepSpeed offload (offload_optimizer: cpu) keeps it on the host",
    "other update rules or rounding: check the loss curve; bitsandbytes must be installed",
    params={"to": "adamw-8bit"},
    safety="display",
)
"""Shown only: another update rule or rounding, which the loss curve has to allow."""
adafactor = patched(
    "Use Adafactor",
    "replace-optimizer",
    "torch.optim.Adafactor(model.parameters(), lr=1e-2)   # torch 2.5 and later\n"
    '# HF: TrainingArguments(optim="adafactor")',
    "another update rule, whose learning rate is relative to the size of each parameter: check the loss curve",
    params={"to": "adafactor"},
    safety="display",
)
"""Shown only: no first moment, and of the second the sums of rows and columns."""
offload = patched(
    "Offload optimizer state",
    "deepspeed-zero",
    'DeepSpeed: "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": true}}\n'
    "FSDP2: fully_shard(model, offload_policy=CPUOffloadPolicy())   # torch.distributed.fsdp, torch 2.6",
    "every step copies gradients and parameters over PCIe; the update runs on the CPU",
    params={"offload_optimizer": True, "stage": 2},
    safety="display",
)
"""Shown only: moves optimizer state to the host, for copies over PCIe in every step."""
