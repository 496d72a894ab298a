"""Values as bytes and back, in little room: what a process or a store is given of a capture, and what strangers may send.

A file is a magic, a version, a checksum and a zlib block of msgpack. In it arrays, long lists of integers (or of rows of
them) and long lists with few different items are columns: deltas, zigzag, byte by byte of all numbers, which compresses to
a few bytes a number.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Sequence
from typing import Any, TypeVar, get_args

import msgspec
import numpy as np
from msgspec.msgpack import Ext

from trace_doctor.errors import TraceDoctorError

_HEAD = struct.Struct("<4sH16s")
_SHAPE = struct.Struct("<BBBII")
_DTYPES = (np.dtype("<i8"), np.dtype("u1"), np.dtype("?"), np.dtype("<i4"), np.dtype("<f8"))
_ARRAY, _INTEGERS, _TABLE = 1, 2, 3
_LEAST = 16
"""items of a list that are worth a column"""
_MOST_IN_ITEM = 8
"""texts in an item of a table: it stands for as many as there are, so that a small file is not a large list"""
MOST_UNPACKED = 16 << 20
T = TypeVar("T")


class UnusableSummary(TraceDoctorError):
    """A summary that is damaged, of another version, or none. One line that says which."""


def pack(value: Any, magic: bytes, version: int) -> bytes:
    """A value that msgspec can encode, with arrays of numbers, as bytes."""
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(value, enc_hook=_plain))
    body = zlib.compress(msgspec.msgpack.encode(_columns(plain)), 9)
    return _HEAD.pack(magic, version, _checksum(body)) + body


def unpack(data: bytes, magic: bytes, version: int, most: int) -> Any:
    """What `pack` made of a value, as plain objects and arrays, for `restored`. Raises UnusableSummary for anything else, for
    more than `most` bytes, and for what unpacks to more than 16 MiB."""
    if len(data) > most:
        raise UnusableSummary(f"{len(data):,} bytes: a summary has at most {most:,}")
    if len(data) < _HEAD.size or data[:4] != magic:
        raise UnusableSummary("no summary of trace-doctor")
    _, its_version, checksum = _HEAD.unpack_from(data)
    if its_version != version:
        raise UnusableSummary(
            f"a summary of version {its_version}: this trace-doctor reads version {version}"
        )
    body = data[_HEAD.size :]
    if _checksum(body) != checksum:
        raise UnusableSummary("damaged: the checksum is another")
    try:
        return msgspec.msgpack.decode(_inflated(body), ext_hook=_from_column)
    except (zlib.error, msgspec.DecodeError, ValueError, TypeError, struct.error, RecursionError) as error:
        raise UnusableSummary(f"damaged: {one_cause(error)}") from None


def restored(raw: Any, kind: type[T]) -> T:
    """The value of this type that `unpack` gave the parts of. Raises UnusableSummary where they do not fit."""
    try:
        return msgspec.convert(raw, kind, dec_hook=_array)
    except (msgspec.ValidationError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise UnusableSummary(f"damaged: {one_cause(error)}") from None


def one_cause(error: BaseException) -> str:
    """The message of an error as a short line."""
    return " ".join(str(error).split())[:200] or type(error).__name__


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(body).digest()[:16]


def _inflated(body: bytes) -> bytes:
    inflater = zlib.decompressobj()
    plain = inflater.decompress(body, MOST_UNPACKED)
    if inflater.unconsumed_tail:
        raise ValueError(f"it unpacks to more than {MOST_UNPACKED >> 20} MiB")
    if not inflater.eof or inflater.unused_data:
        raise ValueError("it is cut, or something follows")
    return plain


# -- columns ---------------------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return Ext(_ARRAY, _column(value))
    if isinstance(value, np.generic):
        return value.item()
    raise NotImplementedError(f"a {type(value).__name__} is no part of a summary")


def _columns(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _columns(item) for name, item in value.items()}
    if not isinstance(value, list):
        return value
    if len(value) < _LEAST:
        return [_columns(item) for item in value]
    if (numbers := _integers(value)) is not None:
        return Ext(_INTEGERS, _column(numbers))
    if (table := _table(value)) is not None:
        items, index = table
        return Ext(_TABLE, msgspec.msgpack.encode([_column(index), items]))
    return [_columns(item) for item in value]


def _integers(value: list[Any]) -> np.ndarray[Any, Any] | None:
    rows = value if isinstance(value[0], list) else [value]
    same = all(isinstance(row, list) and len(row) == len(rows[0]) for row in rows)
    if not same or not all(type(number) is int for row in rows for number in row):
        return None
    try:
        return np.array(value, dtype=np.int64)
    except OverflowError:
        return None


def _table(value: list[Any]) -> tuple[list[Any], np.ndarray[Any, Any]] | None:
    if not all(_is_item(item) for item in value):
        return None
    keys = [tuple(item) if isinstance(item, list) else item for item in value]
    first = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    if 2 * len(first) > len(value):
        return None
    items = [list(key) if isinstance(key, tuple) else key for key in first]
    return items, np.array([first[key] for key in keys], dtype=np.int64)


def _is_item(item: Any) -> bool:
    texts = item if isinstance(item, list) else [item]
    return len(texts) <= _MOST_IN_ITEM and all(isinstance(text, str) for text in texts)


def _column(array: np.ndarray[Any, Any]) -> bytes:
    kind, width = _DTYPES.index(array.dtype), array.dtype.itemsize
    rows, columns = (array.shape[0], 0) if array.ndim == 1 else array.shape
    data = np.ascontiguousarray(array).tobytes()
    if array.dtype == _DTYPES[0]:
        numbers = np.diff(array.ravel(), prepend=np.int64(0))
        zigzag = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
        width = max(1, (int(zigzag.max(initial=0)).bit_length() + 7) // 8)
        data = zigzag.view(np.uint8).reshape(-1, 8)[:, :width].T.tobytes()
    return _SHAPE.pack(kind, array.ndim, width, rows, columns) + data


def _from_column(code: int, data: memoryview) -> Any:
    if code == _TABLE:
        column, items = msgspec.msgpack.decode(bytes(data))
        if not all(_is_item(item) for item in items):
            raise ValueError("a table of something else than texts")
        index = _numbers(memoryview(column))
        if len(index) and not 0 <= index.min() <= index.max() < len(items):
            raise ValueError("a table without some of its items")
        return [items[place] for place in index.tolist()]
    numbers = _numbers(data)
    return numbers if code == _ARRAY else numbers.tolist()


def _numbers(data: memoryview) -> np.ndarray[Any, Any]:
    kind, dimensions, width, rows, columns = _SHAPE.unpack_from(data)
    if kind >= len(_DTYPES) or dimensions not in (1, 2) or not 1 <= width <= 8:
        raise ValueError("a column of an unknown kind")
    dtype, count = _DTYPES[kind], rows * (columns if dimensions == 2 else 1)
    plain = np.frombuffer(data[_SHAPE.size :], dtype=np.uint8)
    if len(plain) != count * (width if kind == 0 else dtype.itemsize):
        raise ValueError("a column of another length than it says")
    if kind == 0:
        padded = np.zeros((count, 8), dtype=np.uint8)
        padded[:, :width] = plain.reshape(width, count).T
        zigzag = padded.view(np.uint64).ravel()
        deltas = (zigzag >> np.uint64(1)).view(np.int64) ^ -(zigzag & np.uint64(1)).view(np.int64)
        array = np.cumsum(deltas, dtype=np.int64)
    else:
        array = plain.copy().view(dtype)
    return array.reshape(rows, columns) if dimensions == 2 else array


def _array(kind: Any, value: Any) -> Any:
    """A column for a field of that type, `NDArray[np.int64]`."""
    _, dtype = get_args(kind)
    expected: Sequence[Any] = get_args(dtype)
    if not isinstance(value, np.ndarray) or value.dtype != np.dtype(expected[0]):
        raise ValueError("a column of another type than its field")
    return value
