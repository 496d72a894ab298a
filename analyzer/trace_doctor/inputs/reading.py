"""How capture groups are read one after the other: where, what is kept of them, and how long each may take."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trace_doctor.config import Settings
from trace_doctor.errors import UsageError
from trace_doctor.inputs.remote import Remote, is_url
from trace_doctor.inputs.store import Shard, Store
from trace_doctor.inputs.summaries import Summaries
from trace_doctor.loading.cluster import scheduler_of

_LONGEST_S = 1e6
"""what the system can wait for"""


@dataclass(frozen=True)
class Reading:
    """What was asked for; of a few captures that nothing is asked for, all are in memory at once."""

    summaries: Summaries | None = None
    """what is read is kept there"""
    scheduler: str | None = None
    """the address of a Dask cluster that reads; None: child processes do"""
    timeout_s: float | None = None
    """of one group: one that takes longer is lost, and the others go on; None: an hour"""

    remote: Remote | None = None
    """what is at URLs"""

    @property
    def asked(self) -> bool:
        """Whether groups have to be read one after the other, however few they are."""
        return self != AS_NEEDED


AS_NEEDED = Reading()


def reading_of(
    settings: Settings,
    *,
    summaries: str | Path | None = None,
    executor: str = "local",
    rank_timeout: float | None = None,
    in_memory: bool = False,
    remote: Remote | None = None,
    shard: Shard | None = None,
) -> Reading:
    """`in_memory`: whether the captures themselves are needed afterwards. Raises UsageError for what does not go together."""
    scheduler = scheduler_of(executor)
    given = {"summaries": summaries, "executor": scheduler, "rank_timeout": rank_timeout, "a URL": remote}
    if in_memory and (names := [name for name, value in given.items() if value is not None]):
        raise UsageError(f"{names[0]}: perfetto and critical_path need the captures themselves")
    if scheduler is not None and remote is not None:
        raise UsageError("executor: captures at a URL are read by this machine")
    if is_url(summaries):
        raise UsageError(f"summaries: {summaries}: the folder has to be one of this machine")
    if scheduler is not None and (settings.jobs or settings.max_memory):
        raise UsageError(
            "executor: jobs and max_memory are of this machine: set them where Dask workers start"
        )
    if rank_timeout is not None and not 0 < rank_timeout <= _LONGEST_S:
        raise UsageError(
            f"rank_timeout: {rank_timeout:g} s is not more than 0 s and at most {_LONGEST_S:g} s"
        )
    store = None if summaries is None else Summaries(Store(Path(summaries)), shard, remote)
    return Reading(store, scheduler, rank_timeout, remote)
