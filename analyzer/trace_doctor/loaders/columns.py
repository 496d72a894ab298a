"""Columns on disk: one capture as one file, written once, checked when read, and mapped instead of copied.

    magic · length and CRC of the header · header (JSON) · arrays, each at a multiple of 64 bytes

The header names the arrays with type, length, offset and CRC, and holds everything else as plain JSON: nothing in such a
file is ever executed, and what does not check out is refused as a whole. Arrays are little endian. The same format serves
the cache and the hand-over between processes.
"""

from __future__ import annotations

import dataclasses
import json
import mmap
import struct
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import IO, Any, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import numpy.typing as npt
from zlib_ng import zlib_ng

from trace_doctor.loaders.torch_trace import CompileLog
from trace_doctor.run import Cat, Run
from trace_doctor.snapshot import Action, BlockState, Snapshot

MAGIC = b"trace-doctor columns 1\n"
_SIZES = struct.Struct("<QI")
_ALIGN = 64
_MOST_HEADER = 1 << 30
_DERIVED = "derived."

Content = Run | Snapshot | CompileLog
KINDS: dict[str, type[Content]] = {"trace": Run, "snapshot": Snapshot, "torch_trace": CompileLog}
Array = npt.NDArray[Any]
D = TypeVar("D")


class Unusable(Exception):
    """The file holds no columns of this format, or not what its header says."""


_WRONG = (KeyError, TypeError, ValueError, AttributeError, RecursionError, msgspec.ValidationError)
"""What a header that says something else leads to."""


def write(file: IO[bytes], content: Content, key: Mapping[str, Any]) -> None:
    """Writes a capture. `key` is what `read` must be given again: what the columns were made from, and by what.

    Raises ValueError when it holds what JSON cannot (nesting beyond Python's limit).
    """
    head = {
        "kind": next(kind for kind, form in KINDS.items() if type(content) is form),
        "tables": {f.name: getattr(content, f.name) for f in _plain(type(content))},
    }
    write_arrays(file, dict(_arrays(content)), key, head)


def read(file: IO[bytes], key: Mapping[str, Any]) -> Content:
    """Maps what `write` wrote; the arrays are read-only and live in the file. Raises Unusable when it was not written
    with all of this key or anything contradicts the header, OSError when the file cannot be read."""
    head, arrays = read_arrays(file, key)
    try:
        content = _assembled(KINDS[head["kind"]], head["tables"], arrays)
    except _WRONG as wrong:
        raise Unusable(f"{type(wrong).__name__}: {wrong}") from None
    _check(content)
    return content


def write_arrays(
    file: IO[bytes],
    arrays: Mapping[str, Array],
    key: Mapping[str, Any],
    more: Mapping[str, Any] = MappingProxyType({}),
) -> None:
    """Writes arrays of one dimension by name, with what else the header is to say. Raises ValueError as `write` does."""
    head = {"key": dict(key), "arrays": _layout(arrays), **more}
    try:
        header = json.dumps(msgspec.to_builtins(head), separators=(",", ":")).encode("ascii")
    except RecursionError:
        raise ValueError("nested too deeply") from None
    file.write(MAGIC + _SIZES.pack(len(header), zlib_ng.crc32(header)) + header)
    at = len(MAGIC) + _SIZES.size + len(header)
    for values in arrays.values():
        file.write(bytes(-at % _ALIGN))
        at += -at % _ALIGN
        file.write(_bytes(values))
        at += values.nbytes
    file.flush()


def read_arrays(file: IO[bytes], key: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Array]]:
    """The header and the arrays of what `write_arrays` wrote, mapped. Raises as `read` does."""
    size = file.seek(0, 2)
    if size < len(MAGIC) + _SIZES.size:
        raise Unusable("too short")
    mapped = memoryview(mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ))
    begin = len(MAGIC) + _SIZES.size
    if mapped[: len(MAGIC)] != MAGIC:
        raise Unusable("not of this format")
    length, crc = _SIZES.unpack(mapped[len(MAGIC) : begin])
    if length > min(size - begin, _MOST_HEADER) or zlib_ng.crc32(mapped[begin : begin + length]) != crc:
        raise Unusable("damaged header")
    try:
        head = json.loads(bytes(mapped[begin : begin + length]))
        if any(head["key"].get(name) != value for name, value in key.items()):
            raise Unusable("made from something else")
        return head, dict(_mapped(mapped, begin + length, head["arrays"]))
    except _WRONG as wrong:
        raise Unusable(f"{type(wrong).__name__}: {wrong}") from None


# -- which fields are arrays ---------------------------------------------------------------------------------------


_known: dict[Any, dict[str, Any]] = {}


def _hints(form: Any) -> dict[str, Any]:
    if form not in _known:
        _known[form] = {name: _meant(hint) for name, hint in get_type_hints(form).items()}
    return _known[form]


def _meant(hint: Any) -> Any:
    """`NDArray[int64]` is `ndarray[…, dtype[int64]]` itself until NumPy 2.4, and an alias made by `type` since 2.5."""
    alias = getattr(get_origin(hint), "__value__", None)
    return hint if alias is None else alias[get_args(hint)]


def _is_array(hint: Any) -> bool:
    return get_origin(hint) is np.ndarray


def dtype_of(hint: Any) -> np.dtype[Any]:
    """The type of the numbers of an `NDArray[…]`, as it stands in files."""
    made: np.dtype[Any] = np.dtype(get_args(get_args(_meant(hint))[1])[0]).newbyteorder("<")
    return made


def _bytes(values: Array) -> memoryview:
    return memoryview(np.ascontiguousarray(values).view(np.uint8))  # type: ignore[arg-type]


def _is_group(hint: Any) -> bool:
    """A dataclass of nothing but arrays."""
    return dataclasses.is_dataclass(hint) and all(_is_array(h) for h in _hints(hint).values())


def _plain(form: type[Content]) -> list[dataclasses.Field[Any]]:
    """The fields that go into the header."""
    hints = _hints(form)
    return [
        f
        for f in dataclasses.fields(form)
        if f.init and f.name != "read_args" and not _is_array(hints[f.name]) and not _is_group(hints[f.name])
    ]


def _arrays(content: Content) -> Iterator[tuple[str, Array]]:
    hints = _hints(type(content))
    for field in dataclasses.fields(content):
        value = getattr(content, field.name)
        if _is_array(hints[field.name]):
            yield field.name, value.astype(dtype_of(hints[field.name]), copy=False)
        elif _is_group(hints[field.name]):
            for name, hint in _hints(hints[field.name]).items():
                yield f"{field.name}.{name}", getattr(value, name).astype(dtype_of(hint), copy=False)
        elif field.name == "derived":
            for name, values in value.items():
                yield f"{_DERIVED}{name}", values


def _layout(arrays: Mapping[str, Array]) -> list[dict[str, Any]]:
    """Offsets count from the end of the header, before alignment is known: an array begins at the next multiple."""
    return [
        {
            "name": name,
            "dtype": values.dtype.str,
            "length": len(values),
            "crc": zlib_ng.crc32(_bytes(values)),
        }
        for name, values in arrays.items()
    ]


def _mapped(mapped: memoryview, at: int, layout: list[dict[str, Any]]) -> Iterator[tuple[str, Array]]:
    for entry in layout:
        at += -at % _ALIGN
        dtype, length = np.dtype(entry["dtype"]), entry["length"]
        if dtype.kind not in "iubf" or not isinstance(length, int) or length < 0:
            raise Unusable("an array of another type")
        size = dtype.itemsize * length
        part = mapped[at : at + size]
        if len(part) != size or zlib_ng.crc32(part) != entry["crc"]:
            raise Unusable(f"{entry['name']} is damaged")
        yield entry["name"], np.frombuffer(part, dtype=dtype)
        at += size
    if at != len(mapped):
        raise Unusable("longer than it should be")


def _assembled(form: type[D], tables: dict[str, Any], arrays: dict[str, Array]) -> D:
    hints = _hints(form)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(form):  # type: ignore[arg-type]
        hint = hints[field.name]
        if _is_array(hint):
            values[field.name] = _typed(arrays[field.name], hint)
        elif _is_group(hint):
            group = {n: _typed(arrays[f"{field.name}.{n}"], h) for n, h in _hints(hint).items()}
            values[field.name] = hint(**group)
        elif field.init and field.name != "read_args":
            values[field.name] = msgspec.convert(tables[field.name], hint)
    made = form(**values)
    if isinstance(made, Run):
        made.derived.update(
            {name.removeprefix(_DERIVED): v for name, v in arrays.items() if name.startswith(_DERIVED)}
        )
    return made


def _typed(values: Array, hint: Any) -> Array:
    if values.dtype != dtype_of(hint):
        raise Unusable("an array of another type")
    return values


# -- what the columns must agree on --------------------------------------------------------------------------------

# array -> what its numbers index, or how many kinds there are; -1 stands for "none" where noted
_INDEXES: dict[type[Any], dict[str, tuple[str | int, int]]] = {
    Run: {"name": ("names", 0), "thread": ("threads", 0), "cat": (len(Cat), 0)},
    Snapshot: {
        "stack": ("stacks", -1),
        "block_stack": ("stacks", -1),
        "block_segment": ("segment_addr", 0),
        "action": (len(Action), 0),
        "block_state": (len(BlockState), 0),
    },
}
_TABLES: dict[type[Any], tuple[str, ...]] = {Run: ("",), Snapshot: ("segment_", "block_", "")}
"""Prefixes of the arrays that form a table; the rest forms the last one."""


def _check(content: Content) -> None:
    """Raises Unusable where columns of one table differ in length or a number points nowhere."""
    form = type(content)
    tables = _TABLES.get(form, ())
    lengths: dict[str, int] = {}
    for name in (n for n, hint in _hints(form).items() if _is_array(hint)):
        table = next(t for t in tables if name.startswith(t))
        count = len(getattr(content, name))
        if lengths.setdefault(table, count) != count:
            raise Unusable("columns of different length")
    for name, (target, least) in _INDEXES.get(form, {}).items():
        values = getattr(content, name)
        count = target if isinstance(target, int) else len(getattr(content, target))
        if len(values) and not (least <= int(values.min()) and int(values.max()) < count):
            raise Unusable(f"{name} points nowhere")
    if isinstance(content, Run):
        memory = content.memory
        if len({len(getattr(memory, f.name)) for f in dataclasses.fields(memory)}) > 1:
            raise Unusable("columns of different length")
        for name, values in content.derived.items():
            if len(values) and not -1 <= int(values.min()) <= int(values.max()) < len(content):
                raise Unusable(f"{name} points nowhere")
