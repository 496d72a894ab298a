"""What a recording lacks, and why: one line each, for the person who ran it and for `recording.json`."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePath

from trace_doctor.recording.folder import BUSY, RankRecord, Recording
from trace_doctor.recording.options import RecordOptions
from trace_doctor.recording.process_log import FAILED, SECOND, TOO_OLD, TORCH
from trace_doctor.recording.processes import OtherLoad
from trace_doctor.recording.running import CommandOutcome


def shortcomings(
    command: Sequence[str],
    options: RecordOptions,
    outcome: CommandOutcome,
    recording: Recording | None,
    processes: Mapping[int, Mapping[str, str]],
    stopped: bool = False,
) -> list[str]:
    """Lines in the order of weight; empty for a recording that has all that was asked for.

    `processes`: what the recorder said in each (`process_log.heard`). `stopped`: whether we stopped the training.
    """
    ranks = list(recording.ranks.values()) if recording else []
    return [
        *_ends(outcome, options, stopped),
        *([_nothing(command, processes)] if not ranks else []),
        *_busy(outcome),
        *_silent(ranks),
        *_others(processes),
        *(_failed(processes) if ranks else ()),
        *_of_ranks(ranks, options, outcome),
    ]


BUSY_OTHERS = 0.25
"""CPUs that others keep busy, from which on they may be why a script waits for one"""
BUSY_GPU = 10
"""percent of the time that a GPU works before anything of ours runs"""


def _busy(outcome: CommandOutcome) -> Iterator[str]:
    waited = max(outcome.waited.values(), default=0.0)
    others = outcome.others.cpus
    if waited >= BUSY and others is not None and others < BUSY_OTHERS:
        yield f"training waited {waited:.0%} of the time for a CPU (it has more workers and threads than cores): times vary"
    elif line := busy_line(waited, outcome.others):
        yield f"{line}: times vary"


def busy_line(waited: float, others: OtherLoad) -> str:
    """How other processes of the machine disturb a script that waited for a CPU for this share of its time; empty where they
    do not."""
    parts = []
    if waited >= BUSY and (others.cpus is None or others.cpus >= BUSY_OTHERS):
        kept = f" and kept {others.cpus:.1f} CPUs busy" if others.cpus is not None else ""
        parts.append(f"training waited {waited:.0%} of the time for a CPU, other processes ran{kept}")
    if others.gpu_percent is not None and others.gpu_percent >= BUSY_GPU:
        parts.append(f"other processes kept the GPU busy {others.gpu_percent}% of the time")
    return "; ".join(parts)


def _ends(outcome: CommandOutcome, options: RecordOptions, stopped: bool) -> Iterator[str]:
    if outcome.why == "time":
        yield f"the script was ended after {outcome.seconds:.0f} s (--max-seconds {options.max_seconds:g})"
    elif outcome.why is None and outcome.exit_code:
        what = "the training was stopped, and then the command" if stopped else "the script"
        code = outcome.exit_code
        yield f"{what} was ended by {signal_name(-code)}" if code < 0 else f"{what} failed: exit code {code}"


def _nothing(command: Sequence[str], processes: Mapping[int, Mapping[str, str]]) -> str:
    """Why no process reported a step."""
    if not processes:
        return (
            loads_no_recorder(command)
            or "no Python process of the command loaded the recorder: none was started, or without our PYTHONPATH"
        )
    if old := next((events[TOO_OLD] for events in processes.values() if TOO_OLD in events), None):
        return old
    if not any(TORCH in events for events in processes.values()):
        return "no process of the command imported torch: it has to be the training script, or what starts it"
    if failed := next((events[FAILED] for events in processes.values() if FAILED in events), None):
        return f"the recorder failed: {failed}"
    return "torch was imported, but no optimizer step ran (--step-every N counts model calls instead)"


def _silent(ranks: Sequence[RankRecord]) -> Iterator[str]:
    """Ranks of the job that left no word."""
    world = max((r.world_size or 1 for r in ranks), default=0)
    recorded = {r.rank for r in ranks}
    missing = [n for n in range(world) if n not in recorded]
    if missing:
        listed = ", ".join(map(str, missing[:8])) + (", …" if len(missing) > 8 else "")
        yield f"of {world} ranks {len(missing)} reported nothing (on other machines, or ended early): {listed}"


def _others(processes: Mapping[int, Mapping[str, str]]) -> Iterator[str]:
    """Processes that trained one after another or side by side, without being ranks of one job."""
    if more := sum(SECOND in events for events in processes.values()):
        yield f"{more} more process{'es' * (more > 1)} trained: only the first one is recorded"


def _failed(processes: Mapping[int, Mapping[str, str]]) -> Iterator[str]:
    """Processes whose recorder came to nothing, beside those that recorded."""
    whys = [events[FAILED] for events in processes.values() if FAILED in events]
    if whys:
        yield f"the recorder failed in {len(whys)} process{'es' * (len(whys) > 1)}: {whys[0]}"


def _of_ranks(ranks: Sequence[RankRecord], options: RecordOptions, outcome: CommandOutcome) -> Iterator[str]:
    """What ranks say of themselves; what all say is said once."""
    whose: dict[str, list[int]] = {}
    for rank in ranks:
        for line in _of_rank(rank, options, outcome):
            whose.setdefault(line, []).append(rank.rank)
    for line, of in whose.items():
        if len(of) == len(ranks):
            yield line
        else:
            yield f"rank {', '.join(map(str, of[:8]))}{', …' if len(of) > 8 else ''}: {line}"


def _of_rank(rank: RankRecord, options: RecordOptions, outcome: CommandOutcome) -> Iterator[str]:
    if not rank.ended:
        yield "the process exited unexpectedly; what it had written until then is kept"
    texts = (*rank.impossible, *rank.warnings)
    came = {p.name for p in rank.phases} | {warning.partition(":")[0] for warning in texts}
    if missing := [p for p in options.phases if p not in came]:
        yield f"{', '.join(missing)}: not captured" + (_too_few(rank, options, outcome) if rank.ended else "")
    yield from texts


def _too_few(rank: RankRecord, options: RecordOptions, outcome: CommandOutcome) -> str:
    count = max((p.last_step + 1 for p in rank.phases), default=0)
    steps = f"{count} step{'s' * (count != 1)}"
    few = f"{steps} {'is' if count == 1 else 'are'} too few for all"
    if outcome.why == "time" or (rank.ended == "enough" and count < options.last_steps):
        return f": only {steps} in --max-seconds {options.max_seconds:g}"
    if count <= options.at:
        return f": the script ended after {steps}, before --at {options.at}"
    divides = (
        f"; --max-steps {count} divides them among the phases" if count > 4 else "; a trace takes about 12"
    )
    return f": {few}{divides}"


def loads_no_recorder(command: Sequence[str]) -> str | None:
    """Why no Python of this command would load the recorder, and the way out; None where that is not certain."""
    flag = _deaf(command)
    way_out = "leave the flag out, or record inside the script (`with trace_doctor.record('logs') as r:`)"
    return f"`python {flag}` loads no recorder: {way_out}" if flag is not None else None


def _deaf(command: Sequence[str]) -> str | None:
    """The flag with which a Python of this command would not load the recorder (`-I`, `-E`, `-S`); None without."""
    for at, word in enumerate(command):
        if not re.fullmatch(r"(python|pypy)[\d.]*", PurePath(word).name):
            continue
        for flag in command[at + 1 :]:
            match = re.match(r"-([a-zA-Z]+)", flag)
            if match is None:
                break
            letters = re.split("[cmWX]", match[1], maxsplit=1)[0]  # what is behind these belongs to them
            if set("IES") & set(letters):
                return f"-{letters}"
            if set("cm") & set(match[1]):
                break
    return None


def signal_name(number: int) -> str:
    """`SIGKILL` of 9; `signal 99` of a number without a name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
