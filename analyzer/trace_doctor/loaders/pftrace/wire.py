"""The wire format of protocol buffers: numbered fields of a message, each with a number or with bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator

Value = int | bytes
_VARINT, _EIGHT, _BYTES, _FOUR = 0, 1, 2, 5
_LONGEST_VARINT = 10
_SIGN = 1 << 63


class Malformed(ValueError):
    """No message, or one that goes on behind the end of its bytes."""


def varint(data: bytes, at: int) -> tuple[int, int]:
    """The number that begins there, below 2**64, and where it ends. Raises Malformed where it does not end."""
    number = shift = 0
    for byte in data[at : at + _LONGEST_VARINT]:
        number |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return number & (2 * _SIGN - 1), at + shift // 7
    raise Malformed("a number without an end")


def fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """(number, value) of each field of a message, in order: an int below 2**64, else bytes. Raises Malformed. Numbers of one
    byte, which are most, are read without a call."""
    at, size = 0, len(data)
    while at < size:
        tag = data[at]
        if tag < 0x80:
            at += 1
        else:
            tag, at = varint(data, at)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise Malformed("a field without a number")
        if kind == _VARINT:
            value = data[at] if at < size else 0x80
            if value < 0x80:
                at += 1
            else:
                value, at = varint(data, at)
            yield number, value
            continue
        if kind == _BYTES:
            length = data[at] if at < size else 0x80
            if length < 0x80:
                at += 1
            else:
                length, at = varint(data, at)
        elif kind in (_EIGHT, _FOUR):
            length = 8 if kind == _EIGHT else 4
        else:
            raise Malformed("a field of an unknown kind")
        if length > size - at:
            raise Malformed("a field that is longer than its message")
        yield number, data[at : at + length]
        at += length


def signed(value: Value) -> int:
    """A number of an int32 or int64 field; 0 for what is none."""
    if not isinstance(value, int):
        return 0
    return value - 2 * _SIGN if value >= _SIGN else value


def unsigned(value: Value) -> int:
    """A number of an unsigned field; 0 for what is none."""
    return value if isinstance(value, int) else 0


def real(value: Value) -> float:
    """A number of a double field; NaN for what is none."""
    if not isinstance(value, bytes) or len(value) != 8:
        return float("nan")
    number: float = struct.unpack("<d", value)[0]
    return number


def text(value: Value) -> str:
    """A string, with a replacement for what is no UTF-8; "" for what is none."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else ""


def message(value: Value) -> bytes:
    """A message within another. Raises Malformed for a number in its place."""
    if not isinstance(value, bytes):
        raise Malformed("a number where a message belongs")
    return value
