"""What torch 2.14 and later say of GPU work in its arguments alone (the CUPTI monitor, later cuspy).

Copies are all named `Memcpy` there: each gets the name that Kineto gives it, so that one name means one kind of copy in
every file. Work of a CUDA graph that was moved to a lane for display has the lane in `stream`, and its stream in
`original_stream`. Source: `torch/profiler/_cuspy/trace.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from trace_doctor.arrays import I64
from trace_doctor.loaders.kineto import rescan
from trace_doctor.run import GPU_CATS, Cat

BARE_COPY = "Memcpy"
MOVED = b'"original_stream"'
ANNOTATED = "cudaGraphInlineAnnotated"
"""field of a file into which `export_chrome_trace` wrote the annotations of CUDA graphs; it may have moved work as well"""

_ARGUMENT = re.compile(
    rb'"(copy kind|src kind|dst kind|original_stream)"\s*:\s*(?:"(\w{1,20})"|(\d{1,10})(?=\s*[,}]))'
)
_DIRECTION = re.compile(r"(?:[HDA]to[HDA]|PtoP)")
_MEMORY = {
    "pageable": "Pageable",
    "pinned": "Pinned",
    "device": "Device",
    "array": "Array",
    "managed": "Managed",
    "device_static": "Device Static",
    "managed_static": "Managed Static",
}
"""as Kineto writes them; a number, which is a kind that the writer does not know, is as little known to us"""


def apply(
    rows: dict[str, npt.NDArray[Any]], names: list[str], pieces: Callable[[], Iterator[bytes]], *, moved: bool
) -> None:
    """Names copies by their kind (new names go to `names`) and puts moved work back on its stream. `rows` are in the order of
    the file, and `pieces` gives its text, which is read only where copies have no kind in their names or work was `moved`."""
    bare = names.index(BARE_COPY) if BARE_COPY in names else -1
    device_work = np.flatnonzero(np.isin(rows["cat"], [int(c) for c in (*GPU_CATS, Cat.GPU_ANNOTATION)]))
    copies = device_work[rows["name"][device_work] == bare]
    if not moved and not len(copies):
        return
    found: dict[bytes, list[tuple[int, str]]] = {}
    for place, match in rescan.occurrences(_ARGUMENT, pieces()):
        found.setdefault(match[1], []).append((place, (match[2] or match[3]).decode("ascii", "replace")))
    ids = {name: n for n, name in enumerate(names)}
    columns = [_texts(rows["offset"], copies, found.get(key, [])) for key in _OF_COPIES]
    for row, direction, source, target in zip(copies.tolist(), *columns, strict=True):
        if _DIRECTION.fullmatch(direction):
            name = (
                f"Memcpy {direction} ({_MEMORY.get(source, 'Unknown')} -> {_MEMORY.get(target, 'Unknown')})"
            )
            rows["name"][row] = ids.setdefault(name, len(ids))
    names.extend(list(ids)[len(names) :])
    streams = _texts(rows["offset"], device_work, found.get(b"original_stream", []))
    for row, stream in zip(device_work.tolist(), streams, strict=True):
        if stream.isdecimal() and int(stream) <= np.iinfo(np.int32).max:
            rows["stream"][row] = int(stream)


_OF_COPIES = (b"copy kind", b"src kind", b"dst kind")


def _texts(offsets: I64, rows: I64, found: list[tuple[int, str]]) -> list[str]:
    """The value that each of these rows has; "" where it has none."""
    if not found:
        return [""] * len(rows)
    at, own = rescan.owners(np.array([place for place, _ in found], dtype=np.int64), offsets)
    return [
        found[n][1] if mine else "" for n, mine in zip(at[rows].tolist(), own[rows].tolist(), strict=True)
    ]
