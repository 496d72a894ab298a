"""What was read: the files, and what each of them says of the program that made it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from trace_doctor.model.quantities import Amount, Count, Share, Us


class TorchVersion(Struct, frozen=True, kw_only=True):
    """Bounds of the torch version that made the capture, and how they are known."""

    min: str | None = None
    max: str | None = None
    how: str | None = None


class LinesRun(Struct, frozen=True, kw_only=True):
    """Lines of a file of the script's own that ran while it was recorded, or may have: of another line it is known that it did
    not, in a function that ran."""

    file: str
    """as Python named it"""
    sha256: str
    ranges: list[tuple[int, int]]
    """first and last line, both included, sorted"""


class Recorded(Struct, frozen=True, kw_only=True):
    """What the profiler was told to record. None: the file does not say."""

    shapes: bool | None = None
    stacks: bool | None = None
    memory: bool | None = None
    flops: bool | None = None
    modules: bool | None = None


LEAST_LAUNCHES = 0.5
"""of the GPU work in the window: with fewer of its launches in the file, what the GPU waited for is a guess. Of 60 captures of GPUs
the least has 0.73; those that lost their launches, and made-up ones, have at most 0.14"""


class Work(Struct, frozen=True, kw_only=True):
    """What a steady step computes (medians), to tell whether two captures are of the same job. None: not recorded."""

    kernels: Amount | None = None
    operators: Amount | None = None
    launches: Share | None = None
    """of the GPU work in the analyzed window: what has its launch in the file"""
    kernel_names: Count | None = None
    """different kernels in the analyzed window: `Result.kernels` lists the longest of them"""
    operator_names: Count | None = None
    """likewise operators and runtime calls of the host, for `Result.operators`"""
    shapes: list[str] = field(default_factory=list)
    """`aten::linear [64, 784] [10, 784]`: products and convolutions with their input shapes, each form once"""


class Pace(Struct, frozen=True, kw_only=True):
    """The steady steps of one trace, all of them (`Result.steps` may be cut)."""

    steps: Count
    median_us: Us
    mad_us: Us
    """median absolute deviation: how far a step usually is from the median"""
    mean_us: Us | None = None
    """what savings and shares go by"""


class Input(Struct, frozen=True, kw_only=True):
    path: str
    kind: Literal["trace", "snapshot", "torch_trace", "flight_recorder"]
    rank: int = 0
    job: Count = 0
    """captures of one job have the same number: each job has a verdict of its own, and no finding is of two"""
    capture: Count | None = None
    """position in `Result.inputs` of the first file of its capture, which rows and findings refer to; None: its own"""
    rank_how: str = ""
    device_name: str | None = None
    torch_version: TorchVersion = TorchVersion()
    events: Count = 0
    steps: Count = 0
    recorded: Recorded = Recorded()
    pace: Pace | None = None
    """None without steps"""
    plain: Pace | None = None
    """of the same run without the profiler; only a recording tells"""
    waited_for_cpu: Share | None = None
    """of a recording: share of its time that the training could have run and did not, because others did"""
    role: str | None = None
    """of a recording: light, detailed, peak, boundary, oom or exception"""
    run_steps: tuple[int, int] | None = None
    """of a recording: the first and the last step of the run that the file shows, as `steps.csv` counts them"""
    seconds: tuple[float, float] | None = None
    """of a recording: from when to when the file shows it, from the first moment that any of its files shows"""
    step_source: str | None = None
    """what marks the steps: profiler_step, loader, optimizer, engine, marker; None without steps"""
    start_up_share: Share | None = None
    """of the analyzed window: warm-up steps, what precedes the first kernel where no steps are marked, first uses and
    compilation that do not come back in each step; None without a time ledger"""
    queued_share: Share | None = None
    """of the analyzed window, and part of that: until the device had done what was queued before the recording"""
    work: Work = Work()
    too_little: str = ""
    """why its capture cannot be judged: nothing recorded in the analyzed window, or a handful of events; empty where it can"""
    warnings: list[str] = field(default_factory=list)


NO_CAPTURE_BELOW = "no capture below this folder"
"""Why a folder that was named is not analyzed."""


class Ignored(Struct, frozen=True, kw_only=True):
    """A file below the paths that was not analyzed, with the reason."""

    path: str
    reason: str
    unread: bool = False
    """a capture that was met and not read: its name or its first bytes say that it is one, or it is no regular file"""

    @property
    def why_unread(self) -> str:
        """One clause: which file was not read, and why."""
        return f"{self.path} was not read: {self.reason}"


class Ranks(Struct, frozen=True, kw_only=True):
    """Which ranks of the job are here."""

    read: list[int] = []
    """ranks of which a capture was read"""
    world: int | None = None
    """how many the job has, as its captures say; None: none says so"""
    recorded: list[int] = []
    """ranks that the manifests of recordings list"""
    note: str = ""
    """"1 of 8 ranks; rules over several ranks did not run"; empty where all are here or nothing says how many there are"""
