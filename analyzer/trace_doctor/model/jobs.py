"""What the ranks of a job of several process groups show together: who delays it, when, and how long groups wait."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct, field

from trace_doctor.model.quantities import Amount, Count, Us

MOST_ROWS, MOST_STEPS, MOST_GROUPS, MOST_NAMED = 512, 20, 64, 16
"""of a job: rows and steps of the excess time; process groups; ranks of one of them"""


class JobRoot(Struct, frozen=True, kw_only=True):
    """What delays a job."""

    kind: Literal["rank", "host", "link", "unread member"]
    """own time of a rank or of all ranks of a host; transfers between ranks; ranks that were not read"""
    ranks: list[int]
    """that were read; of a link those of its process groups"""
    unread: list[int] = field(default_factory=list)
    gain_us: Us
    """of a mean step, without this one"""
    steps: Count
    """in how many steps it shows"""
    cause: str = ""
    """the part of the step time breakdown that exceeds that of the role most"""


class ExcessRow(Struct, frozen=True, kw_only=True):
    """Own time of a rank, or of ranks of one host or process group, in each step beyond the median of ranks with the same role."""

    ranks: list[int]
    worst: int
    """the rank with most"""
    host: str = ""
    """of all of them; empty where it is not known"""
    excess_us: list[int | None]
    """one for each step: of several ranks the largest, in microseconds. None: the step was not captured, or no other rank
    with the same role"""


class GroupLag(Struct, frozen=True, kw_only=True):
    """What ranks wait in the collectives of one process group, and how long its transfers take."""

    ranks: list[int]
    """the first of them"""
    size: Count
    read: Count
    """how many of its ranks were read"""
    kinds: list[str]
    """of its collectives"""
    wait_us: Us | None = None
    """of a rank in a mean step, until the last has arrived; None where clocks or ranks are missing"""
    transfer: Amount | None = None
    """time of its transfers over the median of groups of its size with as many bytes; None as for the wait"""
    last: int | None = None
    """the rank that the others wait for longest"""
    last_in: Count = 0
    """collectives at which it arrives last"""
    collectives: Count = 0


class JobDelays(Struct, frozen=True, kw_only=True):
    """Who delays a job of several process groups. Times by its steps timed again."""

    job: Count = 0
    """as `Input.job`"""
    world: Count
    """ranks of the job"""
    read: Count
    unread: list[int] = field(default_factory=list)
    """the first of those that process groups name and no capture is of"""
    roots: list[JobRoot] = field(default_factory=list)
    """empty where nobody stands out"""
    gain_us: Us = 0.0
    """of a mean step, without all ranks and hosts among the roots"""
    step_us: Us
    slowdown: Amount
    """the step over one with the usual own times and transfers"""
    slowdown_own: Amount
    """the step over one with the usual own times"""
    slowdown_transfer: Amount
    """the step over one with the usual transfers"""
    unknown_clocks: Count = 0
    """ranks whose clock could not be compared"""
    steps: list[int] = field(default_factory=list)
    """the numbers of the steps that the rows show, those with the largest excess"""
    of_steps: Count
    rows: list[ExcessRow] = field(default_factory=list)
    """by rank; of more than 512 ranks one for each host or process group of some size"""
    usual: list[int] = field(default_factory=list)
    """up to two ranks with the role of the first root and the most usual own time"""
    groups: list[GroupLag] = field(default_factory=list)
    """those with the longest wait and excess of transfers first"""
    of_groups: Count = 0

    @property
    def blamed(self) -> list[int]:
        """The ranks that the finding about this job names."""
        own = [rank for root in self.roots if root.kind in ("rank", "host") for rank in root.ranks]
        return own or [rank for root in self.roots[:1] for rank in root.ranks]

    def misfit(self) -> str:
        """Why no analysis wrote this; empty where one may have."""
        if len(self.rows) > MOST_ROWS or len(self.steps) > MOST_STEPS or len(self.groups) > MOST_GROUPS:
            return "it has more rows, steps or process groups of a job than are kept"
        if any(len(row.excess_us) != len(self.steps) or row.worst not in row.ranks for row in self.rows):
            return "the excess times of a job do not fit its steps"
        if self.read > self.world or len(self.steps) > self.of_steps:
            return "it has more ranks or steps of a job than the job"
        return ""
