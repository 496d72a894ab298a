"""Plants faults in the raw events of a healthy trace, with an effect that is known exactly.

Time is inserted at moments at which the GPU has nothing to do and nothing is on its way to it: everything that begins
later is moved, every host event that is open is stretched. A step then takes longer by just what was inserted.
"""

from __future__ import annotations

import bisect
import copy
from collections.abc import Sequence
from typing import Any

Event = dict[str, Any]
GPU = ("kernel", "gpu_memcpy", "gpu_memset")
HOST = ("cpu_op", "user_annotation", "python_function", "cuda_runtime", "cuda_driver", "Trace")


def steps(events: Sequence[Event]) -> list[tuple[float, float]]:
    """(start, end) of the steps, us, by start: mark to mark, the last to the end of its own."""
    marks = sorted(
        (float(e["ts"]), float(e["ts"]) + float(e["dur"]))
        for e in events
        if str(e.get("name")).startswith("ProfilerStep#") and e.get("cat") in ("user_annotation", "cpu_op")
    )
    starts = [start for start, _ in marks]
    return list(zip(starts, [*starts[1:], marks[-1][1]], strict=True))


def quiet_moments(events: Sequence[Event]) -> list[tuple[float, float]]:
    """(start, end) us in which no GPU work runs or is launched and has not run yet."""
    launched = {
        e["args"]["correlation"]: float(e["ts"])
        for e in events
        if str(e.get("cat")).endswith(("_runtime", "_driver")) and "correlation" in (e.get("args") or {})
    }
    pending = sorted(
        (
            min(float(e["ts"]), launched.get((e.get("args") or {}).get("correlation"), float(e["ts"]))),
            float(e["ts"]) + float(e["dur"]),
        )
        for e in events
        if e.get("cat") in GPU
    )
    quiet, reached = [], float("-inf")
    for start, end in pending:
        if start > reached:
            quiet.append((reached, start))
        reached = max(reached, end)
    return [*quiet, (reached, float("inf"))]


def is_quiet(quiet: Sequence[tuple[float, float]], moment: float) -> bool:
    at = bisect.bisect_right([start for start, _ in quiet], moment) - 1
    return at >= 0 and quiet[at][0] < moment < quiet[at][1]


def insert(
    events: Sequence[Event], moments: Sequence[float], us: float, stretched: Sequence[str] = HOST
) -> list[Event]:
    """The events with so much more time at each moment. Events of the categories that are open then take longer."""
    moments = sorted(moments)
    changed = []
    for event in events:
        made = copy.copy(event)
        if "ts" in event:
            start = float(event["ts"])
            made["ts"] = start + us * bisect.bisect_right(moments, start)
            if event.get("ph") == "X" and event.get("cat") in stretched:
                end = start + float(event["dur"])
                inside = bisect.bisect_left(moments, end) - bisect.bisect_right(moments, start)
                made["dur"] = float(event["dur"]) + us * inside
        changed.append(made)
    return changed


def loader_moments(events: Sequence[Event]) -> list[float]:
    """The middle of each wait for a batch, where the GPU is quiet then."""
    quiet = quiet_moments(events)
    middles = [float(e["ts"]) + float(e["dur"]) / 2 for e in _waits(events)]
    return [m for m in middles if is_quiet(quiet, m)]


def stretched_loader(events: Sequence[Event], us: float) -> tuple[list[Event], int]:
    """Every wait for a batch takes so much longer; and how many they are."""
    moments = loader_moments(events)
    return insert(events, moments, us), len(moments)


def driver_calls(events: Sequence[Event], us: float) -> tuple[list[Event], int]:
    """Before each wait for a batch a cudaFree and a cudaMalloc of half the time each, where the GPU is quiet then."""
    quiet = quiet_moments(events)
    waits = _waits(events)
    moments = sorted(m for m in (float(w["ts"]) - 0.5 for w in waits) if is_quiet(quiet, m))
    made = insert(events, moments, us)
    for n, moment in enumerate(moments):
        for k, name in enumerate(("cudaFree", "cudaMalloc")):
            call = {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": name,
                "pid": waits[0]["pid"],
                "tid": waits[0]["tid"],
            }
            begin = moment + us * n + us / 2 * k
            made.append(call | {"ts": begin, "dur": us / 2, "args": {"correlation": 900_000_000 + 2 * n + k}})
    return made, len(moments)


def late_rank(ranks: Sequence[Sequence[Event]], late: int, us: float) -> tuple[list[list[Event]], int]:
    """Where one rank already comes last to a collective it comes later by so much, and all others wait as much longer;
    and how many collectives these are. They are matched by kernel name, counted from the end."""
    own = [_collectives(events) for events in ranks]
    before: list[list[float]] = [[] for _ in ranks]
    for name in set.intersection(*(set(some) for some in own)):
        count = min(len(some[name]) for some in own)
        for k in range(1, count + 1):
            together = [some[name][-k] for some in own]
            if min(range(len(ranks)), key=lambda r: float(together[r]["dur"])) == late:
                for rank, event in enumerate(together):
                    end = float(event["ts"]) + float(event["dur"])
                    before[rank].append(float(event["ts"]) - 0.5 if rank == late else end - 0.5)
    made = [
        insert(events, before[rank], us, HOST if rank == late else (*HOST, "kernel"))
        for rank, events in enumerate(ranks)
    ]
    return made, len(before[late])


def _collectives(events: Sequence[Event]) -> dict[str, list[Event]]:
    found: dict[str, list[Event]] = {}
    for event in sorted((e for e in events if e.get("cat") == "kernel"), key=lambda e: float(e["ts"])):
        if "nccl" in event["name"]:
            found.setdefault(event["name"], []).append(event)
    return found


def _waits(events: Sequence[Event]) -> list[Event]:
    named = (e for e in events if "__next__" in str(e.get("name")) and "enumerate(" in e["name"])
    return sorted((e for e in named if e.get("ph") == "X"), key=lambda e: float(e["ts"]))
