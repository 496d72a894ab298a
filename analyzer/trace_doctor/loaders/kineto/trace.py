"""PyTorch profiler traces (Kineto's Chrome JSON, and the older list that autograd exports) -> `Run`."""

from __future__ import annotations

import gc
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from trace_doctor import memory_limit
from trace_doctor.arrays import I32, I64, Bool
from trace_doctor.errors import DamagedCapture, NotACapture, TooLarge
from trace_doctor.loaders import _accelerator, identify, pftrace
from trace_doctor.loaders.kineto import args, exact_times, gpu_arguments, meta
from trace_doctor.loaders.kineto.categories import BY_NAME, CATEGORIES, LEGACY, LEGACY_GPU, category
from trace_doctor.loaders.kineto.decode import LONGEST_US, PER_EVENT_TEXT, Columns, nanoseconds
from trace_doctor.loaders.kineto.document import Document
from trace_doctor.loaders.stream import ByteStream, ahead
from trace_doctor.run import GPU_CATS, Cat, Damage, Run, Thread

MOST_RESERVED = 4 << 30
"""Bytes of JSON that room is reserved for in advance. It takes no memory before it is used."""
_FREED = (32 << 20) - (1 << 13)
"""The C library gives freed memory back after each window, and takes it again for the next (a fifth of all the time),
until it has seen so large a piece come and go."""
_DEVICE_CATS = (*GPU_CATS, Cat.GPU_ANNOTATION, Cat.SYNC)


def load_trace(
    path: Path,
    display: str,
    *,
    rank: int = 0,
    rank_how: str = "",
    max_memory: int | None = None,
    core_free: bool = True,
) -> Run:
    """Loads one trace, plain or gzip. `display` is the path to show; `rank` is used when the file names none itself;
    `core_free` tells whether another core has nothing to do, which then unpacks.

    A damaged file gives all events that can be read, and `Run.damage` counts the rest. Raises NotACapture when the
    file is no PyTorch profiler trace, DamagedCapture when it is empty or nothing in it can be read, TooLarge when
    analysing it would take more than `max_memory` bytes (default: a share of what is available), OSError when it
    cannot be opened.
    """
    np.empty(_FREED, np.uint8)
    stream = ByteStream(path)
    # the decoder in Python lets no other thread run: each piece would wait for its turn
    beside = stream.unpacker is not None and core_free and _accelerator.in_use()
    keep = _Keep(ahead(stream.pieces()) if beside else stream.pieces())
    columns, damage = Columns(min(stream.length, MOST_RESERVED) // PER_EVENT_TEXT), Damage()
    document = Document(
        _within(max_memory or memory_limit.memory_limit(), keep, columns, display), columns, damage
    )
    document.watch(meta.MARKERS)
    collecting = gc.isenabled()
    gc.disable()
    try:
        document.read()
    finally:
        if collecting:
            gc.enable()
    if stream.problem:
        damage.truncated = True
        damage.notes.append(stream.problem)
    damage.trailing += stream.trailing
    _refuse_others(display, document, columns, keep.head, stream.problem)
    reader = args.ArgsReader(path, display, keep.whole(), stream.unpacker)
    return _assemble(display, document, columns, damage, reader, rank, rank_how)


def _within(memory: int, pieces: Iterable[bytes], columns: Columns, display: str) -> Iterator[bytes]:
    """The pieces, as long as an analysis of the events read so far stays within `memory` bytes."""
    for piece in pieces:
        if columns.needed > memory:
            raise TooLarge(
                f"{display}: the first {columns.count:,} events need more than {memory_limit.text(memory)} of memory "
                "(--max-memory)"
            )
        yield piece


class _Keep:
    """Passes pieces on; remembers the head, and the whole text of a small file."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self.head = b""
        self._pieces = pieces
        self._kept: list[bytes] | None = []
        self._size = 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            if len(self.head) < identify.HEAD:
                self.head = (self.head + piece)[: identify.HEAD]
            self._size += len(piece)
            if self._kept is not None:
                self._kept.append(piece)
                if self._size > args.KEPT:
                    self._kept = None
            yield piece

    def whole(self) -> bytes | None:
        """The text as read so far; None where it was more than is kept."""
        return b"".join(self._kept) if self._kept is not None else None


def _refuse_others(display: str, document: Document, columns: Columns, head: bytes, problem: str) -> None:
    if why := identify.nothing_in(head):
        raise DamagedCapture(f"{display}: {problem or why}")
    ours = bool(columns.cats.keys() & CATEGORIES.keys()) or any(pid in LEGACY for pid, _ in columns.tracks)
    described = document.arrays > 0 and any(k in document.meta for k in ("schemaVersion", "deviceProperties"))
    if ours or described:
        return
    if document.arrays == 0 and identify.torch_marks(head) and identify.foreign(head) is None:
        why = f" ({problem})" if problem else ""
        raise DamagedCapture(f"{display}: a profiler trace that ends before its first event{why}")
    raise NotACapture(identify.refusal(display, head, document.keys))


def _assemble(
    display: str,
    document: Document,
    columns: Columns,
    damage: Damage,
    reader: args.ArgsReader,
    rank: int,
    rank_how: str,
) -> Run:
    info = meta.clean(document.meta)
    base_ns = info.get("baseTimeNanoseconds", 0)
    rows = columns.rows()
    warnings: list[str] = []
    rows = _without_lost_times(rows, damage, warnings)
    names, cats = list(columns.names), list(columns.cats)
    threads, thread = _threads(columns, rows.pop("track"))
    damage.lost += columns.timeless
    _warn(warnings, damage, document, columns, cats, rows)
    rows["cat"] = _categories(rows, names, cats, threads, thread)
    rows["thread"] = thread
    if pftrace.MARK not in info:  # it has no kinds of copies, and names each stream itself
        moved = gpu_arguments.MOVED in document.features or gpu_arguments.ANNOTATED in info
        gpu_arguments.apply(rows, names, reader.pieces, moved=moved)
    rows["device"], rows["stream"] = _places(rows, threads)
    coarse = not columns.integer_ts and exact_times.is_coarse(rows["ts"])
    rows["ts"] = nanoseconds(rows["ts"])
    if coarse:
        rows["ts"] = exact_times.exact(rows["ts"], rows["offset"], reader.pieces())
    rows["ts"] += base_ns
    rows["dur"] = _durations(rows["dur"], damage, warnings)
    _into_order(rows)
    memory = columns.memory(base_ns)
    _agent_to_ordinal(rows, names, memory.device, info)
    counters = columns.counters(base_ns)
    number, how = meta.rank(info, display, rank, rank_how)
    warnings += meta.impossible_ranks(document.meta, number, how)
    return Run(
        path=display,
        external_id=rows.pop("external"),
        **rows,
        names=names,
        threads=threads,
        memory=memory,
        counters=counters,
        meta=info,
        recorded=meta.recorded(
            info,
            stacks=bool((rows["cat"] == Cat.PYTHON).any()),
            memory=len(memory) > 0,
            features=document.features,
            operators=bool((rows["cat"] == Cat.CPU_OP).any()),
        ),
        torch_version=meta.torch_version(
            info, names, set(cats), integer_ts=columns.integer_ts, legacy_list=document.legacy_list
        ),
        rank=number,
        rank_how=how,
        damage=damage,
        warnings=warnings,
        read_args=reader,
        graph_nodes={},
    )


def _into_order(rows: dict[str, npt.NDArray[Any]]) -> None:
    """Sorts the columns by (start, longer first, place in the file). The memory that one leaves takes the next."""
    order = _order(rows["ts"], rows["dur"], rows["offset"])
    remaining: dict[int, npt.NDArray[Any]] = {}
    for key, column in rows.items():
        room = remaining.get(column.itemsize)
        target = np.empty_like(column) if room is None else room.view(column.dtype)
        rows[key] = np.take(column, order, out=target, mode="clip")  # "raise" would make a copy first
        remaining[column.itemsize] = column


def _order(ts: I64, dur: I64, offset: I64) -> I64:
    """Files are nearly in order of start, which a stable sort uses; only the few events that start together are sorted
    by the rest."""
    order = np.argsort(ts, kind="stable")
    placed = ts[order]
    same = placed[1:] == placed[:-1]
    tied = np.flatnonzero(np.append(same, False) | np.append(False, same))
    among = order[tied]
    order[tied] = among[np.lexsort((offset[among], -dur[among], ts[among]))]
    return order


def _durations(us: npt.NDArray[Any], damage: Damage, warnings: list[str]) -> I64:
    bad = (us < 0) | (us > LONGEST_US) | np.isnan(us)
    if bad.any():
        damage.clamped += int(bad.sum())
        warnings.append(f"{_events(int(bad.sum()), 'has', 'have')} no possible duration; it counts as 0")
        us[bad] = 0.0
    return nanoseconds(us)


def _without_lost_times(
    rows: dict[str, npt.NDArray[Any]], damage: Damage, warnings: list[str]
) -> dict[str, npt.NDArray[Any]]:
    """Leaves out rows whose start *and* duration were written as 0 while the trace runs far from zero: their place
    is unknown, and they would stretch the window."""
    without_times = (rows["ts"] == 0) & (rows["dur"] <= 0)
    if not without_times.any() or without_times.all():
        return rows
    placed = rows["ts"][~without_times]
    if placed.min() <= max(placed.max() - placed.min(), 1e6):
        return rows
    damage.clamped += int(without_times.sum())
    warnings.append(
        f"{_events(int(without_times.sum()), 'was', 'were')} left out: neither start nor duration recorded"
    )
    return {key: values[~without_times] for key, values in rows.items()}


def _threads(columns: Columns, track: I32) -> tuple[list[Thread], I32]:
    """Tracks by their text: some versions write the same id once as a number, once as text. In the memory of `track`."""
    ids: dict[tuple[str, str], int] = {}
    to_thread = [ids.setdefault((str(pid), str(tid)), len(ids)) for pid, tid in columns.tracks]
    threads = [
        Thread(pid, tid, columns.labels.get((pid, tid)) or columns.processes.get(pid, "")) for pid, tid in ids
    ]
    if to_thread != list(range(len(to_thread))):
        track[:] = np.array(to_thread, dtype=np.int32)[track]
    return threads, track


def _categories(
    rows: dict[str, npt.NDArray[Any]], names: list[str], cats: list[str], threads: list[Thread], thread: I32
) -> npt.NDArray[np.uint8]:
    """By the text of the category; of the few that are not of one kind, by each distinct name and process."""
    kinds: npt.NDArray[np.uint8] = _kinds(category(cat, "", "") for cat in cats)[rows["cat"]]
    processes = np.array([LEGACY.index(t.pid) if t.pid in LEGACY else len(LEGACY) for t in threads])
    for number, cat in enumerate(cats):
        if cat not in BY_NAME:
            continue
        own_rows = np.flatnonzero(rows["cat"] == number)
        kind = processes[thread[own_rows]]
        for at, pid in enumerate((*LEGACY, "")):
            here = own_rows[kind == at]
            if len(here):
                kinds[here] = _kinds(category(cat, name, pid) for name in names)[rows["name"][here]]
    return kinds


def _kinds(categories: Iterable[Cat]) -> npt.NDArray[np.uint8]:
    return np.array([*map(int, categories), 0], dtype=np.uint8)


_NUMBER = re.compile(r"-?\d+")


def _trailing_number(text: str) -> int:
    """`7`, `stream 7`, `stream 7 (compute)` -> 7; -1 when there is none that fits."""
    match = _NUMBER.search(text)
    value = int(match[0]) if match and len(match[0]) < 12 else -1
    return value if -1 <= value <= np.iinfo(np.int32).max else -1


def _places(rows: dict[str, npt.NDArray[Any]], threads: list[Thread]) -> tuple[npt.NDArray[np.int16], I32]:
    """Device and stream of each row: the arguments where given, else the track's ids. Host rows have none. In the memory
    of the arguments."""
    by_pid, by_tid = [], []
    for t in threads:
        if t.pid == LEGACY_GPU:  # the track's tid is the device
            by_pid.append(max(_trailing_number(t.tid), 0))
            by_tid.append(-1)
        else:
            pid = _trailing_number(t.pid)
            by_pid.append(pid if 0 <= pid <= np.iinfo(np.int16).max else 0)
            by_tid.append(_trailing_number(t.tid))
    device, stream = rows["device"], rows["stream"]
    there = np.flatnonzero(_of(rows["cat"], _DEVICE_CATS))
    track, named, numbered = rows["thread"][there], device[there], stream[there]
    # A wait may name its stream on the host side, too; other host rows (Triton's `stream` is a pointer) have none.
    calls = np.flatnonzero(_of(rows["cat"], (Cat.RUNTIME, Cat.DRIVER)))
    stream_of_calls = stream[calls]
    device[:], stream[:] = -1, -1
    device[there] = np.where(named >= 0, named, np.array(by_pid or [0], dtype=np.int16)[track])
    # A wait for the whole device has stream -1, and the absolute of it as its track: no stream 1.
    whole = (rows["cat"][there] == Cat.SYNC) & (named >= 0)
    by_track = np.array(by_tid or [0], dtype=np.int32)[track]
    stream[there] = np.where((numbered >= 0) | whole, numbered, by_track)
    stream[calls] = stream_of_calls
    return device, stream


def _agent_to_ordinal(
    rows: dict[str, npt.NDArray[Any]],
    names: list[str],
    of_memory: npt.NDArray[np.int16],
    info: dict[str, Any],
) -> None:
    """ROCm numbers the GPU of a kernel among all HSA agents, CPU sockets first, and deviceProperties and `[memory]` among the
    GPUs that the process sees. Where only one GPU did all work, and is the only one that it sees or allocates on, that is
    its number; where there are more, the file does not tell which is which."""
    device = rows["device"]
    gpu = device >= 0
    calls = np.unique(rows["name"][rows["cat"] == Cat.RUNTIME]).tolist()
    if len(np.unique(device[gpu])) != 1 or not any(names[name].startswith("hip") for name in calls):
        return
    listed = [d["id"] for d in info.get("deviceProperties", ()) if "id" in d]
    allocated = np.unique(of_memory[of_memory >= 0]).tolist()
    told = {ids[0] for ids in (listed, allocated) if len(ids) == 1}
    if len(told) == 1 and (own := told.pop()) <= np.iinfo(np.int16).max and set(allocated) <= {own}:
        device[gpu] = own


def _of(cat: npt.NDArray[np.uint8], cats: Iterable[Cat]) -> Bool:
    return np.asarray(
        np.logical_or.reduce([cat == c for c in cats])
    )  # compared, not looked up: thirty times as fast


def _warn(
    warnings: list[str],
    damage: Damage,
    document: Document,
    columns: Columns,
    cats: list[str],
    rows: dict[str, npt.NDArray[Any]],
) -> None:
    """Short plain sentences on what was wrong, for people."""
    if damage.given_up:
        warnings.append(
            f"reading was given up at {damage.given_up:,} unreadable places; all complete events before were read"
        )
    elif damage.truncated:
        reason = damage.notes[0] if damage.notes else "the file is cut off"
        warnings.append(f"{reason}; all complete events were read")
    if damage.leading:
        bytes_ = "1 byte" if damage.leading == 1 else f"{damage.leading:,} bytes"
        warnings.append(f"{bytes_} before the begin of the trace are not part of it")
    if damage.trailing:
        bytes_ = "1 byte" if damage.trailing == 1 else f"{damage.trailing:,} bytes"
        warnings.append(
            f"{bytes_} after the end of the trace could not be read, and may hold another capture"
        )
    if damage.repaired:
        warnings.append(f"{_events(damage.repaired, 'was', 'were')} readable only after a repair")
    if damage.lost:
        warnings.append(f"{_events(damage.lost, 'could', 'could')} not be read")
    if document.arrays > 1:
        warnings.append(f"{document.arrays} event lists were merged")
    if columns.out_of_memory:
        warnings.append(f"out-of-memory marks in the capture: {columns.out_of_memory}")
    counts = np.bincount(rows["cat"], minlength=len(cats)).tolist()
    unknown = {c: n for c, n in zip(cats, counts, strict=False) if c and c not in CATEGORIES and n}
    if unknown:
        examples = ", ".join(sorted(unknown)[:3]) + (" ..." if len(unknown) > 3 else "")
        total = _events(sum(unknown.values()), "is", "are")
        warnings.append(f"{total} of an unknown category ({examples}) and not analyzed")


def _events(count: int, one: str, many: str) -> str:
    return f"1 event {one}" if count == 1 else f"{count} events {many}"
