"""Results that were saved: `--output json`, or the one inside a report."""

from __future__ import annotations

import codecs
import re
import zlib
from pathlib import Path

import msgspec

from trace_doctor.errors import NotACapture, UnusableResult, UsageError
from trace_doctor.files import open_regular, read_regular
from trace_doctor.model import SCHEMA_VERSION, Result, Tool
from trace_doctor.model.detail import Detail
from trace_doctor.model.treatment import Treatment
from trace_doctor.reporters.embedded_json import LARGEST, extract, extract_detail, inflated
from trace_doctor.reporters.seals import seal_holds
from trace_doctor.reporters.units import visible
from trace_doctor.sound_json import repeated_key

_PATCH = b"# unsafe: "
_GZIP = b"\x1f\x8b"
_BEGIN = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"collectives"\s*:')
"""A result in JSON: its keys are in the order of the alphabet"""
_LOOKED_AT = 1 << 10
"""bytes"""


class _Head(msgspec.Struct):
    """What tells a result from any other JSON."""

    schema_version: int
    tool: Tool


def read_saved(path: Path) -> Result:
    """The result in a RESULT.json or a report.html, of a report with its `detail`.

    Raises, in one line, NotACapture where there is none, UnusableResult for one that is damaged or asks for what no fix
    does."""
    name = path.name or str(path)  # `.` has no name
    try:
        data = _plain(read_regular(path, LARGEST))
    except OSError as error:
        raise NotACapture(f"{name}: {error.strerror or 'cannot be read'}") from error
    except ValueError as error:
        raise NotACapture(f"{name}: {error}") from error
    if not data.strip():
        raise NotACapture(f"{name} is empty")
    try:
        detail = None
        if data.lstrip()[:1] == b"<":
            page = data.decode()
            data, detail = extract(page), extract_detail(page)
        schema = msgspec.json.decode(data, type=_Head).schema_version
    except NotACapture as error:
        raise NotACapture(f"{name}: {error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotACapture(f"{name} is no trace-doctor result: {error}") from error
    if seal_holds(data) is False:
        raise UnusableResult(
            f"{name}: changed since trace-doctor wrote it; write it again, or take its last entry, the digest, out"
        )
    if schema < 1:
        raise UnusableResult(f"{name}: schema {schema} is none that trace-doctor ever wrote")
    if schema > SCHEMA_VERSION:
        raise UnusableResult(
            f"{name}: written by a newer trace-doctor (schema {schema}, this one reads {SCHEMA_VERSION})"
        )
    try:
        if key := repeated_key(data) or (detail and repeated_key(detail)):
            raise UnusableResult(
                f"{visible(key)[:60]!r} stands twice in one object of it, which no program writes"
            )
        result = Result.from_json(data)
        return result if detail is None else with_detail(result, detail)
    except UnusableResult as error:
        raise UnusableResult(f"{name}: {error}") from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnusableResult(f"{name} is no trace-doctor result: {error}") from error


def _plain(data: bytes) -> bytes:
    """The bytes of a result as they were written: not packed by gzip, and without the mark that Windows puts in front. Raises
    ValueError where they cannot be unpacked."""
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise ValueError("text in UTF-16; write it as UTF-8")
    data = inflated(data) if data.startswith(_GZIP) else data
    return data.removeprefix(codecs.BOM_UTF8)


def _head(path: Path) -> bytes:
    """The first bytes of a file, of a result also where it is packed. Raises OSError."""
    with open_regular(path) as file:
        data = file.read(_LOOKED_AT)
    if data.startswith(_GZIP):
        try:
            data = zlib.decompressobj(31).decompress(data, _LOOKED_AT)
        except zlib.error:
            return b""
        data = data if _BEGIN.match(data) else b""  # to unpack all of a capture for a look takes seconds
    return data.removeprefix(codecs.BOM_UTF8)


def saved_result(path: Path) -> Result | None:
    """The result that a file holds, whatever its name; None for captures, folders and what is not there.

    Raises as `read_saved` for a page without a result, and for a result that is damaged."""
    if not path.is_file():
        return None
    try:
        head = _head(path)
    except OSError:
        return None  # who reads captures says why
    ours = head.lstrip()[:1] == b"<" or path.suffix == ".html" or _BEGIN.match(head) is not None
    if not ours and head.lstrip()[:1] != b"{":
        return None
    try:
        return read_saved(path)
    except NotACapture as error:
        if ours or isinstance(error, UnusableResult):
            raise
        return None


def with_detail(result: Result, detail: bytes) -> Result:
    """The result with the `detail` of its page. Raises msgspec.ValidationError for one that is of no such result."""
    read = msgspec.json.decode(detail, type=list[Detail])
    if not all(d.input < len(result.inputs) for d in read):
        raise msgspec.ValidationError("detail of a capture that the result has not")
    return msgspec.structs.replace(result, detail=read)


def read_treatment(path: Path) -> Treatment:
    """The treatment in a file that `treat` wrote as a page or as JSON. Raises UsageError where there is none."""
    try:
        data = read_regular(path, LARGEST)
        data = extract(data.decode()).lstrip() if data.lstrip()[:1] == b"<" else data
        if repeated_key(data):
            raise UnusableResult("a key that stands twice")
        return Treatment.from_json(data)
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or 'cannot be read'}") from None
    except (NotACapture, UnusableResult, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise UsageError(f"{path} is no page and no JSON of treat") from None


def is_page_of_ours(path: Path, kind: type[Result] | type[Treatment]) -> bool:
    """Whether a file is a page that was made of a result or of a treatment: what it embeds is one. A generator's name
    anybody can write."""
    try:
        data = read_regular(path, LARGEST)
        if not data.startswith(b"<!doctype html>"):
            return False
        embedded = extract(data.decode())
        msgspec.json.decode(embedded, type=kind)
        return msgspec.json.decode(embedded, type=_Head).tool.name == Tool().name
    except (OSError, NotACapture, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def is_patch_of_ours(path: Path) -> bool:
    """Whether a file begins as the patches that `fix` and `treat` write do. Raises OSError."""
    with open_regular(path) as file:
        return file.read(256).startswith(_PATCH)
