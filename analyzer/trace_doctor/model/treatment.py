"""The outcome of `treat`: which fixes were tried, what each promised and gave, and the patch of those that helped.

Times are float microseconds (`_us`), memory is bytes, shares are 0..1. `None` means "not known", never zero.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from trace_doctor.model import FixKind, Mention, Safety, Saving
from trace_doctor.model.difference import Difference
from trace_doctor.model.results import Document

How = Literal["created", "changed", "deleted"]
Fate = Literal["kept", "rejected", "not_in_force", "not_tried"]
"""`not_in_force`: a recording with the edit shows that it did not run, or that its value did not arrive"""


class Effect(Struct, frozen=True, kw_only=True):
    """One quantity of runs with and without a change. Ratios are after / before."""

    unit: Literal["us", "bytes"]
    before: float
    """median over the runs; of step times each run counts with its median"""
    after: float
    ratio: float
    bound: float | None = None
    """the true ratio is below it with 1 - alpha; None with too few runs"""
    interval: tuple[float, float] | None = None
    """the true ratio lies in it with 95%; None with too few runs"""
    p: float
    verdict: Literal["less", "more", "no_difference"]
    detectable: float
    """share that would have had to be gained, with runs that scatter as these, to be told from chance"""
    runs_before: list[float] = field(default_factory=list)
    runs_after: list[float] = field(default_factory=list)


class LossCheck(Struct, frozen=True, kw_only=True):
    verdict: Literal["same", "close", "differ", "not_seen"]
    steps: int = 0
    """that all runs show a loss of"""
    distance: float | None = None
    """mean absolute difference, as a share of the mean loss"""
    own: float = 0.0
    """the same among runs of the script as it was"""
    how: str = ""


class Effects(Struct, frozen=True, kw_only=True):
    """What a change did to the runs."""

    time: Effect | None = None
    memory: Effect | None = None
    losses: LossCheck | None = None
    pairs: int = 0
    """runs of each side"""


class ValueTried(Struct, frozen=True, kw_only=True):
    """One value of a fix in a search. A search picks a value; whether it helps is shown by other runs."""

    name: str
    """`num_workers`"""
    value: str
    ratio: float | None = None
    """step time with it / without, runs next to each other; of a batch size the time of one sample; None: it did not run
    through"""
    runs: int = 0
    best: bool = False
    failure: str = ""
    """why a run with it ended early"""


class Attempt(Mention, frozen=True, kw_only=True):
    """One fix of one finding."""

    label: str
    """`TD101-1`, or `TD101-1.2` for the second fix of a finding"""
    fix: str
    kind: FixKind
    safety: Safety
    predicted: Saving | None = None
    """what the finding claims"""
    fate: Fate
    reason: str
    effects: Effects = Effects()
    seconds: float = 0.0
    diff: str = ""
    environment: dict[str, str] = field(default_factory=dict)
    arguments: list[str] = field(default_factory=list)
    values: list[ValueTried] = field(default_factory=list)
    """what a search has compared, smaller values first"""
    samples: float | None = None
    """how many times as many samples a step has, of a fix that changes the training: times are those of so many samples as a
    step has without it, and losses are not compared; None: the training is the same"""


class ByHand(Struct, frozen=True, kw_only=True):
    """A fix that is not to be made by a program, and why."""

    label: str
    fix: str
    why: str
    text: str = ""


class FileChange(Struct, frozen=True, kw_only=True):
    """A file of the user's that is not as it was before the first run. A run wrote it, or somebody else did meanwhile."""

    name: str
    """relative to the project; `link -> target` for a file outside of it that a link of the project leads to"""
    how: How
    through: str = ""
    """the link, or the linked file or folder, through which a run could write it; empty: none is known"""


class Method(Struct, frozen=True, kw_only=True):
    """How runs were compared."""

    warmup_steps: int
    timed_steps: int
    figure: Literal["median", "mean"]
    """of the timed steps, with which a run counts: the mean where much of the time lies in few long steps"""
    repeats: int
    alpha: float
    least_gain: float
    loss_tolerance: float


class Treatment(Document, frozen=True, kw_only=True):
    code: int
    """exit code: 0 something helped or there was nothing to try, 1 no fix helped, 2 files of the user's changed, or may
    have behind a mount; of an interrupted one 130 or 143"""
    verdict: str
    """one sentence"""
    method: Method
    attempts: list[Attempt] = field(default_factory=list)
    """in the order they were tried"""
    together: Effects = Effects()
    """the script as it was against the script with all that was kept, in runs of their own where several were"""
    confirmed: bool | None = None
    """whether those runs show the gain; None where there were none"""
    patch: str = ""
    batch: list[Attempt] = field(default_factory=list)
    """batch sizes and accumulation, where they were asked for: judged by samples per second, on top of what was kept"""
    batch_patch: str = ""
    """of what was kept of `batch`, to apply after `patch`"""
    environment: dict[str, str] = field(default_factory=dict)
    """variables to start the command with"""
    arguments: list[str] = field(default_factory=list)
    """options to add to the command"""
    by_hand: list[ByHand] = field(default_factory=list)
    difference: Difference | None = None
    """recordings before and after; None where none was made after"""
    notes: list[str] = field(default_factory=list)
    changed: list[FileChange] = field(default_factory=list)
    """files of the user's that changed while the command ran in the copy, at most 1,000 of them"""
    changed_count: int = 0
    """all of them"""
    mounted: list[str] = field(default_factory=list)
    """places in the copy where runs have mounted something: they are left, and what lies there was not compared"""
    stopped: str = ""
    """why the trials ended before their end, other than by an interruption"""
    interrupted: bool = False
    fingerprint: str = ""
    """of the command and of the scripts and configuration that were copied: `--resume` goes on only where it is the same"""

    def of(self, fate: Fate) -> list[Attempt]:
        """The attempts that came to this fate."""
        return [a for a in self.attempts if a.fate == fate]
