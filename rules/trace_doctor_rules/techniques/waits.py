"""Waits of the host for results of the device."""

from __future__ import annotations

from trace_doctor import Fix, Target
from trace_doctor_rules._shared import advice, advised, patch, patched

_LATER = "code that acts on the value in every step (early stopping, NaN checks) sees it later"


def read_seldom(verify: str, target: Target | None, every: int = 10) -> Fix:
    """An edit: one wait in so many steps."""
    return patch(
        f"Read the value every {every} steps",
        "every-n-guard",
        f"if step % {every} == 0:\n    print(step, loss.item())",
        _LATER,
        verify,
        params={"every": every},
        target=target,
    )


sum_on_device = patched(
    "Accumulate on the GPU",
    "sum-on-device",
    "total = 0.0\nfor step, batch in enumerate(loader):\n    ...\n"
    "    total += loss.detach()          # no wait\nprint(float(total) / len(loader))   # one wait for all",
    _LATER,
)
"""An edit: a running sum stays a tensor, with one wait where it is read."""


def fixed_sizes(verify: str, operator: str, target: Target | None) -> Fix:
    """`operator`: the one whose result has as many elements as the data says."""
    return advice(
        "Avoid data-dependent shapes",
        f"{operator} must know how many elements it returns, so the host waits. Multiply by the mask or use\n"
        "torch.where(mask, x, 0) instead of x[mask]; torch.nonzero_static(mask, size=n) where a bound is known;\n"
        "topk or sort instead of a data-dependent selection.",
        "masked-out elements are computed as well; sums and means must be divided by mask.sum()",
        verify,
        target=target,
    )


copy_seldom = advised(
    "Batch copies to the host",
    "Collect on the device and copy once after N steps:\n"
    "outputs.append(output.detach())                      # no wait\n"
    "results = torch.stack(outputs).cpu()                 # one wait for all",
    "what is collected stays in GPU memory until it is copied",
)
"""Advice: one copy for N steps; the results stay on the device until then."""
copy_behind = advised(
    "Copy asynchronously to pinned memory",
    "buffer = torch.empty(output.shape, dtype=output.dtype, pin_memory=True)\n"
    "buffer.copy_(output, non_blocking=True)\n"
    "done = torch.cuda.Event(); done.record()\n"
    "...                                               # the next step\n"
    "done.synchronize(); use(buffer)",
    "reading the buffer before the event is done gives wrong numbers",
)
"""Advice: a copy to pinned memory with an event, read one step later."""
keep_on_device = advised(
    "Keep the tensor on the GPU",
    'self.register_buffer("bias", bias, persistent=False)   # in __init__(): moves to the GPU with the module\n'
    "mask = mask.to(device)                                 # above the loop, not in forward()\n"
    "# in a library: the tensor is an attribute of its module, and module.name = module.name.to(device) moves it once",
    "only for values that are the same in every step; what is kept takes GPU memory",
)
"""Advice for a tensor of the model that is copied to the device in each forward."""


def no_synchronize(verify: str, target: Target | None, *, device_wide: bool) -> Fix:
    """`device_wide`: whether it is `torch.cuda.synchronize()`, which an edit can take out."""
    text = (
        "Delete the synchronization. To measure time, record torch.cuda.Event(enable_timing=True) around the work and\n"
        "read elapsed_time() after the loop."
    )
    risk = "timers around asynchronous work then measure its launch only"
    if not device_wide:
        return advice("Remove the synchronization from the loop", text, risk, verify, target=target)
    return patch(
        "Remove torch.cuda.synchronize() from the loop",
        "remove-call",
        text,
        risk,
        verify,
        params={"call": "torch.cuda.synchronize"},
        target=target,
    )
