"""Objects whose arrays lie in a file: written by one process of ours, mapped by another, or by the same one later.

The file has no name, so that nobody else can write it and nothing is left to clean up; that is why it may be a pickle.
"""

from __future__ import annotations

import mmap
import os
import pickle
import struct
import tempfile
from typing import IO, Any

_ALIGN = 64
_COUNTS = struct.Struct("<QQ")


def write(value: object) -> IO[bytes]:
    """A new file without a name that holds the value. Raises OSError where there is no room."""
    buffers: list[pickle.PickleBuffer] = []
    head = pickle.dumps(value, protocol=5, buffer_callback=buffers.append)
    arrays = [buffer.raw() for buffer in buffers]
    sizes = b"".join(struct.pack("<Q", array.nbytes) for array in arrays)
    file = tempfile.TemporaryFile()  # noqa: SIM115 - it is handed out
    try:
        file.write(_COUNTS.pack(len(head), len(arrays)) + sizes + head)
        for array in arrays:
            file.write(bytes(-file.tell() % _ALIGN))
            file.write(array)
        file.flush()
    except BaseException:
        file.close()
        raise
    return file


def read(file: IO[bytes]) -> Any:
    """What `write` wrote: its arrays are read-only and stay in the file, whose pages the system can take back. Raises
    OSError."""
    mapped = memoryview(mmap.mmap(file.fileno(), os.fstat(file.fileno()).st_size, access=mmap.ACCESS_READ))
    length, count = _COUNTS.unpack_from(mapped)
    sizes = struct.unpack_from(f"<{count}Q", mapped, _COUNTS.size)
    at = _COUNTS.size + 8 * count
    head = mapped[at : at + length]
    at += length
    arrays = []
    for size in sizes:
        at += -at % _ALIGN
        arrays.append(mapped[at : at + size])
        at += size
    return pickle.loads(head, buffers=arrays)
