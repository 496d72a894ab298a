"""What the command writes to files of the user's, looked at before the first trial."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trace_doctor.errors import UsageError, printable
from trace_doctor.recording.agent.copy_up import COPIED, REFUSED
from trace_doctor.treatment.scratch import Scratch

_MOST_NAMED = 5


def look_at_writes(scratch: Scratch, allow: bool, say: Callable[[str], None]) -> None:
    """Tells what the recording wrote of its own in place of the user's files. Raises UsageError where it was to write to the
    user's own, or did through a link that nobody asked for: each trial would again."""
    refuse_writes(scratch.writes_of_runs(REFUSED))
    if copied := scratch.writes_of_runs(COPIED):
        say(f"the command writes to {_some(copied)}: each run gets a copy of its own")
    if not allow:
        through = [c.name for c in scratch.changes() if c.through and c.through not in scratch.asked]
        refuse_writes(through)


def refuse_writes(names: Sequence[str]) -> None:
    """Raises UsageError where there is one."""
    if names:
        raise UsageError(
            f"the command writes to files of yours that the copy has no copy of: {_some(names)}; --copy-data copies data, "
            "--allow-data-writes lets it write"
        )


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return printable(", ".join(names[:_MOST_NAMED])) + more
