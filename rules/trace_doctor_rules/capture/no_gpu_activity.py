"""TD004 no-gpu-activity."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from trace_doctor import Claim, Context, Fix, Rule, threshold
from trace_doctor.evidence.trace.capture_health import CaptureHealth
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules._shared import advice


def _work(*, gpu: bool, kernels: bool, devices: int = 1, often: int = 1) -> RunBuilder:
    b = RunBuilder(devices=devices) if gpu else RunBuilder(gpu=None)
    for _ in range(3):
        with b.step(), b.op("aten::mm", us=50):
            for _ in range(often if kernels else 0):
                b.launch(100)
    return b


def _only_a_wait() -> RunBuilder:
    b = RunBuilder()
    b.sync()
    return b


def _launched_but_lost(often: int = 1) -> RunBuilder:
    b = _work(gpu=True, kernels=True, often=often)
    b.events = [e for e in b.events if e["cat"] != "kernel"]
    return b


def _nothing_named() -> RunBuilder:
    b = _launched_but_lost()
    del b.meta["deviceProperties"]
    return b


def _of_a_script(device: str) -> RunBuilder:
    b = _work(gpu=False, kernels=False)
    b.recorded_device = device
    return b


def _outside_the_window() -> RunBuilder:
    b = RunBuilder()
    b.run_op("aten::mm", 100)
    b.wait(10_000)
    for _ in range(3):
        with b.step(), b.op("aten::mm", us=50):
            pass
    return b


class NoGpuActivity(Rule):
    """The machine has a GPU, and the capture shows nothing that it did.

    What it does
    Says so when the file names GPUs, or launches on them, but holds no kernel, copy or memset in the analysed window.
    Where it names none, the GPU counts that its recording says the script used.

    Why is this bad
    Idle time, kernels, copies and communication cannot be judged: every rule about them has to abstain, and what the
    host does looks like the whole cost.

    Evidence
    `deviceProperties` of the file, `environment.json` of a recording, or calls of a runtime that launch work, and no
    GPU event in the window. Launch calls without kernels mean that the GPU's side was lost; no call of the runtime at
    all means that it was not asked for. A model on the CPU is TD006's.

    How the saving is estimated
    There is none: this is about the capture.

    Fix
    `activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]`, at least one warm-up step in the schedule, and a CUPTI
    that works: no other profiler attached, permission to read performance counters, a driver that matches.

    Fix safety
    Only shown: it concerns the code that records.

    When to ignore
    When the capture was meant to show the host alone.

    References
    https://docs.pytorch.org/docs/stable/profiler.html
    https://developer.nvidia.com/ERR_NVGPUCTRPERM
    """

    code = "TD004"
    name = "no-gpu-activity"
    title = "GPU activity was not recorded"
    needs = (CaptureHealth,)

    many_lost: int = threshold(
        10,
        "launches without their kernels that are not the first ones only, which a profiler that starts late loses",
        unit="count",
        source="public captures in which another profiler ran: 100 to 268 launches",
    )

    VALID = [
        Valid("kernels in the window", lambda: _work(gpu=True, kernels=True)),
        Valid("a machine without a GPU", lambda: _work(gpu=False, kernels=False)),
        Valid("a recording of a script that used no GPU", lambda: _of_a_script("")),
    ]
    INVALID = [
        Invalid(
            "CPU activity only",
            lambda: _work(gpu=True, kernels=False),
            severity="warning",
            message="lists NVIDIA H100 80GB HBM3 but has no GPU activity in the analyzed window: ProfilerActivity.CUDA",
            fixes=("Enable ProfilerActivity",),
        ),
        Invalid("eight GPUs", lambda: _work(gpu=True, kernels=False, devices=8), message="lists 8 × NVIDIA H100"),
        Invalid("a profiler without a GPU side", lambda: _of_a_script("NVIDIA Orin"), severity="warning", message="lists NVIDIA Orin but has"),
        Invalid("nothing but a call of the runtime", _only_a_wait, severity="warning", message="runtime calls", fixes=("Add warm-up",)),
        Invalid("kernels lost", _launched_but_lost, severity="warning", message="3 calls launched", fixes=("Add warm-up",)),
        Invalid("all of many kernels lost", lambda: _launched_but_lost(10), message="30 calls launched", fixes=("Stop other profilers",)),
        Invalid("kernels lost of a GPU without a name", _nothing_named, severity="warning", message="lists no GPU and has"),
        Invalid("kernels before the first step", _outside_the_window, severity="warning", message="outside", fixes=("Enable ProfilerActivity",)),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        health = ctx[CaptureHealth]
        if health.gpu_events_in_window or not (health.devices or health.launch_calls):
            return
        if health.ran_on_cpu and not health.gpu_events:
            return
        yield Claim(
            message=f"The capture {_names(health.devices)} no GPU activity in the analyzed window: {_why(health)}.",
            confidence="high",
            severity="warning",
            fixes=[_fix(health, self.many_lost)],
            key="gpu",
        )


_SCHEDULE = "schedule=schedule(wait=1, warmup=1, active=5, repeat=1)"
_VERIFY = "Record again: the trace holds kernels and TD004 is gone"


_ASK_FOR_THE_GPU = advice(
    "Enable ProfilerActivity.CUDA",
    f"profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA], {_SCHEDULE})",
    "",
    _VERIFY,
)
_LOSE_NOTHING = advice(
    "Add warm-up steps to the profiler schedule",
    f"profile(..., {_SCHEDULE})   # the GPU's side starts late: the first launches are lost\n"
    "torch.cuda.synchronize()   # before the profile ends\n"
    "# no other profiler at the same time, and permission to read performance counters",
    "",
    _VERIFY,
)


_PROFILE_ALONE = advice(
    "Stop other profilers; synchronize before profiling ends",
    "torch.cuda.synchronize()   # before the profile ends\n"
    "# no Nsight, DCGM or profiler_metrics (experimental_config) at the same time, and permission to read performance counters",
    "",
    _VERIFY,
)


def _fix(health: CaptureHealth, many_lost: int) -> Fix:
    if not health.runtime or health.gpu_events:
        return _ASK_FOR_THE_GPU
    return _PROFILE_ALONE if health.launch_calls >= many_lost else _LOSE_NOTHING


def _names(devices: tuple[str, ...]) -> str:
    """Those that the file names; torch before 1.9 and some builds for ROCm name none."""
    if not devices:
        return "lists no GPU and has"
    counted = Counter(name or "an unnamed GPU" for name in devices)
    return f"lists {', '.join(name if n == 1 else f'{n} × {name}' for name, n in counted.items())} but has"


def _why(health: CaptureHealth) -> str:
    if health.gpu_events:
        return f"its {health.gpu_events:,} GPU events lie outside the steps"
    if health.launch_calls:
        calls = f"{health.launch_calls:,} call{'' if health.launch_calls == 1 else 's'}"
        return f"{calls} launched kernels that the profiler lost"
    if health.runtime:
        return "CUDA runtime calls were recorded, but no kernels"
    return "ProfilerActivity.CUDA was off, or no kernel ran"
