"""What a recording holds, in a few lines: said when the recorded command has ended."""

from __future__ import annotations

import os
import shlex
import statistics
import textwrap
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from trace_doctor.errors import unbroken
from trace_doctor.recording.command_line import masked
from trace_doctor.recording.folder import RankRecord, Recording, read, role_of
from trace_doctor.recording.harmless import MASK
from trace_doctor.recording.launch import Recorded
from trace_doctor.recording.live.server import ServerCapture
from trace_doctor.reporters.units import duration, plural, size

_FILES_SHOWN = 6
_VLLM_FOLDER = "torch_profiler_dir of its --profiler-config (before vLLM 0.13: VLLM_TORCH_PROFILER_DIR)"
_SGLANG_FOLDER = "SGLANG_TORCH_PROFILER_DIR as the server has it, /tmp if it is not set"
_IN_SCRIPT = "`with trace_doctor.record('logs') as r:` around the loop, `r.step()` at its end"


def render(recorded: Recorded, command: Sequence[str], written: Sequence[str] = ()) -> list[str]:
    """Lines for the terminal, the next command last. `written`: files that the run has left where it ran."""
    folder = shown(recorded.folder)
    lines = [f"trace-doctor: {_headline(recorded)} {folder}"]
    if recorded.recording:
        lines += chain.from_iterable(map(_wrapped, _contents(recorded.recording)))
    for warning in recorded.warnings:
        lines += _wrapped(f"  note    {warning}")
    if written:
        more = f" and {len(written) - _FILES_SHOWN} more" if len(written) > _FILES_SHOWN else ""
        names = ", ".join(written[:_FILES_SHOWN]) + more
        lines += _wrapped(f"  written {names} (--copy records in a copy of the folder)")
    if recorded.windows:
        first, last = shown(recorded.windows[0]), shown(recorded.windows[-1])
        lines += _wrapped(f"  trail   {len(recorded.windows)} recordings: {first} to {last}")
    complete = [shown(window) for window in recorded.windows if _is_complete(window)]
    if len(complete) > 1:
        first, last = complete[0], complete[-1]
        lines.append(f"next: trace-doctor diff {shlex.quote(first)} {shlex.quote(last)}")
    elif captures(recorded.folder):
        lines.append(f"next: trace-doctor analyze {shlex.quote(folder)}{_source(command)}")
    elif not recorded.recording:
        lines.append(f"or in the script itself: {_IN_SCRIPT}")
    return list(map(unbroken, lines))


def _is_complete(folder: Path) -> bool:
    """Whether the script did not end meanwhile, and something can be compared."""
    recording = read(folder)
    ended = recording is not None and all(r.ended == "enough" for r in recording.ranks.values())
    return ended and bool(captures(folder))


def render_server(capture: ServerCapture, folder: Path | None) -> list[str]:
    """Lines for the terminal, the next command last. `folder`: where SGLang was told to write."""
    how = "; it stopped by itself" if capture.stopped_itself else ""
    name = capture.engine or "a server that is neither vLLM nor SGLang by its answer"
    lines = [f"trace-doctor: {name} recorded for {capture.seconds:.1f} s{how}"]
    if folder is not None and any(folder.iterdir()):
        return [*lines, f"next: trace-doctor analyze {shlex.quote(shown(folder))}"]
    if folder is not None and capture.engine == "SGLang":
        lines += _wrapped(
            f"  note    {shown(folder)} is empty: the server may see another file system, or still write"
        )
    places = {"vLLM": _VLLM_FOLDER, "SGLang": _SGLANG_FOLDER}
    place = places.get(capture.engine or "", " or ".join(places.values()))
    lines += _wrapped(f"  trace   the server writes it: {place}")
    return [*lines, "next: trace-doctor analyze FOLDER of that trace"]


def why_empty(recorded: Recorded) -> str:
    """One line for a recording that holds nothing."""
    return unbroken(f"nothing was recorded that can be analyzed: {'; '.join(recorded.warnings)}")


def _wrapped(line: str) -> list[str]:
    """Lines of a terminal; words (files, options) stay whole."""
    return textwrap.wrap(line, 80, subsequent_indent=" " * 10, break_long_words=False, break_on_hyphens=False)


def shown(path: Path) -> str:
    """Relative to the working directory where it is below it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def captures(folder: Path) -> list[Path]:
    """Traces and snapshots, in the order of ranks."""
    try:
        by_role = [(role, path) for path in folder.iterdir() if (role := role_of(path.name)) is not None]
    except OSError:  # the script took it away
        return []
    return [path for _, path in sorted(by_role)]


def _headline(recorded: Recorded) -> str:
    recording = recorded.recording
    if recording is None:
        return "no step recorded:"
    steps = max((len(of) for of in recording.steps.values()), default=0)
    ranks = f" of {len(recording.ranks)} ranks" if len(recording.ranks) > 1 else ""
    ways = sorted({r.found_steps_by for r in recording.ranks.values() if r.found_steps_by})
    how = f" (detected by {', '.join(ways)}{_accumulation(recording)})" if ways else ""
    stopped = "; script stopped" if recorded.stopped_by_us else ""
    return f"recorded {plural(steps, 'step')}{ranks}{how}{', but nothing to analyze' if recorded.empty else ''}{stopped}:"


def _accumulation(recording: Recording) -> str:
    batches = max((r.accumulation or 1 for r in recording.ranks.values()), default=1)
    return f", {batches} batches each" if batches > 1 else ""


def _contents(recording: Recording) -> Iterator[str]:
    times = {rank: recording.timed(rank) for rank in recording.ranks}
    if medians := {rank: statistics.median(of) for rank, of in times.items() if of}:
        slowest = max(medians, key=lambda rank: medians[rank])
        middle, count = medians[slowest], len(times[slowest])
        spread = statistics.median(abs(t - middle) for t in times[slowest])
        others = (
            f", rank {slowest}; fastest {duration(min(medians.values()) * 1e3)}" if len(medians) > 1 else ""
        )
        yield f"  step    {duration(middle * 1e3)} ± {duration(spread * 1e3)} without profiler (median of {count}{others})"
    if phased_rank := next((r for _, r in sorted(recording.ranks.items()) if r.phases), None):
        yield f"  phases  {_phases(phased_rank)}"
        yield from _periodic(phased_rank)
    files = captures(recording.folder)
    sizes = [f"{p.name} {size(p.stat().st_size)}" for p in files[:_FILES_SHOWN]]
    if rest := files[_FILES_SHOWN:]:
        sizes.append(f"{len(rest)} more {size(sum(p.stat().st_size for p in rest))}")
    if sizes:
        yield f"  files   {', '.join(sizes)}"


def _periodic(record: RankRecord) -> Iterator[str]:
    """What came at least twice between steps."""
    if (work := record.periodic) is not None:
        first = work.places[0]
        yield (
            f"  between {duration(work.milliseconds * 1e3)} every {work.every:.0f} steps, {work.share:.0%} of the run: mostly "
            f"{first.calls or first.function}() ({Path(first.file).name}:{first.line})"
        )


def _phases(record: RankRecord) -> str:
    parts = []
    for phase in record.phases:
        steps = (
            f" {phase.last_step - phase.first_step + 1}" if phase.last_step >= phase.first_step >= 0 else ""
        )
        slower = phase.overhead or 0.0  # below none: steps that vary more than recording costs
        cost = f" ({slower:+.0%} per step)" if slower >= 0.005 else ""
        parts.append(f"{phase.name}{steps}{cost}")
    return ", ".join(parts)


def _source(command: Sequence[str]) -> str:
    """The folder of the script, where the command names one and it may be shown."""
    script = next((Path(word) for word in command if word.endswith(".py") and os.path.isfile(word)), None)
    if script is None or MASK in masked([str(script.parent)]):
        return ""
    return f" --source {shlex.quote(str(script.parent))}"
