"""Dumps of the flight recorder of torch.distributed, pickled or in JSON.

Written when a collective times out, to `comm_lib_trace_rank_N` (of older PyTorch `nccl_trace_rank_N`) or whatever prefix
`TORCH_FR_DUMP_TEMP_FILE` gives; as JSON by the handlers of a process. Read from torch 2.13
(torch/csrc/distributed/c10d/FlightRecorder*.hpp, torch/distributed/flight_recorder/) and real dumps of it, made with gloo.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from trace_doctor.errors import DamagedCapture, NotACapture, TooLarge
from trace_doctor.flight_recorder import FlightDump, FlightEntry, State
from trace_doctor.loaders.plain_pickle import contained, unpickled
from trace_doctor.loaders.stream import ByteStream
from trace_doctor.user_frames import Frame, is_user_frame, plain_path

_WHAT = "flight recorder dump"
_KEYS = (b"pg_config", b"pg_status", b"collective_seq_id", b"nccl_comm_state")
MOST_ENTRIES = 100_000
"""of one dump: a ring has 2,000 unless it is set larger; the newest are kept"""
_MOST_JSON = 256 << 20
_MOST_FRAMES, _MOST_STACK, _MOST_TEXT, _MOST_TENSORS = 1000, 5, 500, 100_000
_LARGEST = 1 << 62
_RANKS = re.compile(r"\d{1,7}")
_P2P = re.compile(r"(send|recv) (-?\d{1,7}|\?)(->|<-)(-?\d{1,7}|\?)")
_STATES: tuple[State, ...] = ("scheduled", "started", "completed")


def load_flight_dump(
    path: Path, display: str, *, rank: int = 0, rank_how: str = "", max_memory: int | None = None
) -> FlightDump:
    """Reads one dump in a child process with limits, as a snapshot is (`plain_pickle.contained`). Raises NotACapture, DamagedCapture or
    TooLarge with one line, OSError for a file that cannot be opened."""

    def read(most: int) -> FlightDump:
        return read_flight_dump(path, display, rank=rank, rank_how=rank_how, most=most)

    return contained(read, path, display, _WHAT, max_memory)


def read_flight_dump(
    path: Path, display: str, *, rank: int = 0, rank_how: str = "", most: int | None = None
) -> FlightDump:
    """`load_flight_dump` in this process and without limits but one, how many decompressed bytes are read."""
    written = path.stat().st_mtime_ns
    if ByteStream(path).head(64).lstrip(b"\xef\xbb\xbf \t\r\n")[:1] == b"{":
        return _dump(_json(path, display, most), display, rank, rank_how, written)
    with unpickled(path, display, _WHAT, most, lambda head: any(key in head for key in _KEYS)) as data:
        return _dump(data, display, rank, rank_how, written)


def _json(path: Path, display: str, most: int | None) -> Any:
    stream, limit = ByteStream(path), min(most or _MOST_JSON, _MOST_JSON)
    data = stream.head(limit + 1)
    if len(data) > limit:
        raise TooLarge(f"{display}: a flight recorder dump of more than {limit >> 20} MiB of JSON")
    if stream.problem or stream.trailing:
        raise DamagedCapture(f"{display}: {stream.problem or 'the file goes on after its ' + _WHAT}")
    try:
        return msgspec.json.decode(data.removeprefix(b"\xef\xbb\xbf"))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        why = str(error)[:100]
        raise DamagedCapture(f"{display}: the {_WHAT} is cut off or damaged ({why})") from None


def _dump(data: Any, display: str, rank: int, rank_how: str, written: int) -> FlightDump:
    if not isinstance(data, dict) or not ({"pg_config", "pg_status", "nccl_comm_state"} & data.keys()):
        raise NotACapture(f"{display}: no {_WHAT}; it has no process groups")
    raw = data.get("entries") or []  # JSON of a process without any leaves them out
    if not isinstance(raw, (list, tuple)):
        raise DamagedCapture(f"{display}: damaged {_WHAT} (its entries are a {type(raw).__name__})")
    entries = [e for each in raw[-MOST_ENTRIES:] if (e := _entry(each)) is not None]
    unreadable = len(raw[-MOST_ENTRIES:]) - len(entries)
    if raw and not entries:
        raise DamagedCapture(f"{display}: damaged {_WHAT} (none of its {len(raw):,} entries can be read)")
    warnings = [f"{unreadable:,} entries could not be read"] if unreadable else []
    if left_out := len(raw) - len(raw[-MOST_ENTRIES:]):
        warnings.append(f"only its newest {MOST_ENTRIES:,} entries were read, {left_out:,} were not")
    if not rank_how:
        warnings.append("its name has no rank: 0 is assumed")
    return FlightDump(
        path=display,
        rank=rank,
        rank_how=rank_how or "assumed, the file names no rank",
        rank_assumed=not rank_how,
        entries=tuple(sorted(entries, key=lambda e: e.record_id)),
        groups=_groups(data.get("pg_config")),
        written_ns=written,
        warnings=tuple(warnings),
        unread=len(raw) - len(entries),
    )


def _groups(config: Any) -> dict[tuple[str, str], tuple[int, ...]]:
    """Process groups with the ranks of each. One without a name is left out: gloo writes its last group so (torch 2.13)."""
    groups = {}
    for group in config.values() if isinstance(config, Mapping) else ():
        if isinstance(group, Mapping) and group.get("name"):
            name = _text(group["name"]), _text(group.get("desc", ""))
            numbers = group.get("ranks", "")
            text = numbers if isinstance(numbers, str) else " ".join(map(str, _items(numbers)))
            groups[name] = tuple(sorted({int(number) for number in _RANKS.findall(text[: 1 << 20])}))
    return groups


def _items(value: Any) -> Iterable[Any]:
    return value[:_MOST_TENSORS] if isinstance(value, (list, tuple)) else ()


def _entry(raw: Any) -> FlightEntry | None:
    """None for what cannot be one: without a name, a process group or its numbers."""
    if not isinstance(raw, Mapping):
        return None
    name, group = raw.get("profiling_name"), raw.get("process_group")
    record_id = _number(raw.get("record_id"), -1)
    if not isinstance(name, str) or not isinstance(group, (list, tuple)) or not group or record_id < 0:
        return None
    backend, _, call = name[:_MOST_TEXT].rpartition(":")
    p2p = _P2P.fullmatch(call)
    is_p2p = raw.get("is_p2p") is True or p2p is not None
    sequence = _number(raw.get("collective_seq_id", raw.get("seq_id")), -1)  # one number before version 2.0
    if sequence < 0 and not is_p2p:  # it can be compared with no call of another rank
        return None
    state = raw.get("state")
    return FlightEntry(
        record_id=record_id,
        group=(_text(group[0]), _text(group[1]) if len(group) > 1 else ""),
        sequence=sequence,
        kind=p2p[1] if p2p else call,
        backend=backend,
        peers=_peers(p2p) if p2p else None,
        is_p2p=is_p2p,
        elements_in=_elements(raw.get("input_sizes")),
        elements_out=_elements(raw.get("output_sizes")),
        dtypes=(_dtypes(raw.get("input_dtypes")), _dtypes(raw.get("output_dtypes"))),
        state=state if state in _STATES else "scheduled",
        retired=raw.get("retired") is True,
        created_ns=_number(raw.get("time_created_ns"), 0),
        timeout_ms=_number(raw.get("timeout_ms"), 0),
        stack=_stack(raw.get("frames")),
    )


def _number(value: Any, otherwise: int) -> int:
    return value if type(value) is int and 0 <= value < _LARGEST else otherwise


def _text(value: Any, most: int = _MOST_TEXT) -> str:
    return value[:most] if isinstance(value, str) else str(value)[:most] if type(value) is int else ""


def _peers(match: re.Match[str]) -> tuple[int, int]:
    one, other = (-1 if number == "?" else int(number) for number in (match[2], match[4]))
    return (one, other) if match[3] == "->" else (other, one)


def _elements(sizes: Any) -> int:
    """Of all tensors together; a scalar has one."""
    total = 0
    for size in _items(sizes):
        count = 1
        for dim in _items(size):
            count = min(count * _number(dim, 0), _LARGEST - 1)
        total = min(total + count, _LARGEST - 1)
    return total


def _dtypes(names: Any) -> str:
    return ", ".join(dict.fromkeys(_text(name, 30) for name in list(_items(names))[:64]))


def _stack(frames: Any) -> tuple[Frame, ...]:
    known = []
    for raw in list(_items(frames))[:_MOST_FRAMES]:
        if isinstance(raw, Mapping) and isinstance(raw.get("filename"), str):
            known.append(
                Frame(
                    plain_path(raw["filename"][:_MOST_TEXT]),
                    min(_number(raw.get("line"), 0), 10**9),
                    _text(raw.get("name")),
                )
            )
    own = [f for f in known if is_user_frame(f.file)]
    return tuple(own[:_MOST_STACK] or known[:1])
