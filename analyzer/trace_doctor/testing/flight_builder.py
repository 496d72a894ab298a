"""`FlightBuilder`: small flight recorder dumps for rule authors, written as real pickles and read by the real loader.

b = FlightBuilder(rank=0, size=4)
b.call("all_reduce", 1024, at=("train.py", 41, "step"))        # number 1 of the default group, complete
b.call("all_reduce", 1024, state="started")                    # number 2, which did not end
dump = b.dump()
"""

from __future__ import annotations

import os
import pickle
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trace_doctor.flight_recorder import FlightDump

DEFAULT = "default_pg"
_START_NS = 1_700_000_000 * 10**9


class FlightBuilder:
    """The dump of one rank of a job. `groups`: description -> ranks, beside the default group of all `size` ranks. `first_record`:
    so many older calls were overwritten. `gloo`: as that backend writes it, without states. `members=False` leaves out the members
    of all groups."""

    def __init__(
        self,
        rank: int = 0,
        size: int = 4,
        *,
        groups: Mapping[str, Sequence[int]] | None = None,
        first_record: int = 0,
        gloo: bool = False,
        members: bool = True,
        timeout_s: float = 600.0,
    ) -> None:
        self.rank = rank
        self._groups = {DEFAULT: list(range(size)), **(groups or {})}
        self._names = {description: str(n) for n, description in enumerate(self._groups)}
        self._record_id, self._gloo, self._members = first_record, gloo, members
        self._numbers = dict.fromkeys(self._groups, 0)
        self._timeout_s, self._now_s = timeout_s, 0.0
        self._entries: list[dict[str, Any]] = []

    def skip(self, count: int, group: str = DEFAULT) -> None:
        """The next collective of a group has a number that is larger by `count`."""
        self._numbers[group] += count

    def call(
        self,
        kind: str,
        elements: int | tuple[int, int] = 1024,
        *,
        group: str = DEFAULT,
        state: str = "completed",
        retired: bool | None = None,
        dtype: str = "Float",
        at: tuple[str, int, str] | None = ("train.py", 41, "step"),
        same_number: bool = False,
        after_s: float = 0.01,
        backend: str = "",
    ) -> None:
        """A collective with so many elements in (and out), `after_s` after the call before it. `same_number`: coalesced with it. A send
        is `"send 0->1"`, a receive `"recv 1<-0"`."""
        is_p2p = kind.startswith(("send ", "recv "))
        self._numbers[group] += not (is_p2p or same_number)
        self._now_s += after_s
        given, made = elements if isinstance(elements, tuple) else (elements, elements)
        done = state == "completed"
        self._entries.append(
            {
                "record_id": self._record_id,
                "pg_id": int(self._names[group]),
                "process_group": (self._names[group], group),
                "collective_seq_id": self._numbers[group],
                "p2p_seq_id": int(is_p2p),
                "op_id": len(self._entries) + 1,
                "profiling_name": f"{backend or ('gloo' if self._gloo else 'nccl')}:{kind}",
                "time_created_ns": _START_NS + int(self._now_s * 1e9) + 1000 * self.rank,
                "input_sizes": [[given]] if given else [],
                "input_dtypes": [dtype] if given else [],
                "output_sizes": [[made]] if made else [],
                "output_dtypes": [dtype] if made else [],
                "state": "scheduled" if self._gloo else state,
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": None,
                "retired": done if retired is None else retired,
                "timeout_ms": int(self._timeout_s * 1000),
                "is_p2p": is_p2p,
                "frames": [{"filename": at[0], "line": at[1], "name": at[2]}] if at else [],
            }
        )
        self._record_id += 1

    def wait(self, seconds: float) -> None:
        """Time passes before the next call, or before the dump is written."""
        self._now_s += seconds

    def data(self) -> dict[str, Any]:
        """What the pickle holds."""
        config = {
            self._names[description]: {
                "name": self._names[description],
                "desc": description,
                "ranks": str(ranks) if self._members else "[]",
            }
            for description, ranks in self._groups.items()
            if self.rank in ranks
        }
        return {"version": "2.10", "pg_config": config, "pg_status": {}, "entries": self._entries}

    def write(self, path: Path) -> None:
        """The dump as PyTorch writes it, with the time of the last call or `wait`."""
        path.write_bytes(pickle.dumps(self.data(), protocol=2))
        written_ns = _START_NS + int(self._now_s * 1e9)
        os.utime(path, ns=(written_ns, written_ns))

    def dump(self) -> FlightDump:
        """The dump as the loader reads it."""
        from trace_doctor.loaders.flight_recorder import load_flight_dump

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"comm_lib_trace_rank_{self.rank}"
            self.write(path)
            return load_flight_dump(path, path.name, rank=self.rank, rank_how="file name")
