"""TORCH_TRACE structured logs: PyTorch's own account of what it compiled, why it broke a graph and why it recompiled.

`TORCH_TRACE=folder` makes torch 2.2 and later write `dedicated_log_torch_trace_[rank_N_]….log`: lines like

    V1121 12:56:07.760000 7976 torch/_dynamo/symbolic_convert.py:5098] {"artifact": {"name": …}, "frame_id": 0, …}
    <tab>one line of payload

Read from torch 2.13 (torch/_logging/_internal.py `trace_structured`, torch/_guards.py `CompileId`) and real logs of it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from trace_doctor.errors import NotACapture
from trace_doctor.loaders import provenance
from trace_doctor.loaders.provenance import KernelSource
from trace_doctor.loaders.stream import ByteStream
from trace_doctor.user_frames import plain_path

_HEADER = re.compile(rb"(?:\[rank\d+\]:)?[VDIWECF]\d{4} \d\d:\d\d:\d\d\.\d+ (\S+) \S+:\d+\] *(\{.*)")
_MOST_PAYLOAD = 8 << 20
"""Bytes of one payload that are kept: the lines of 10,000 kernels take that. Graphs and generated code are never asked for."""
_LARGEST_FILE = 64 << 20
"""Bytes of a file about kernels, unpacked"""
_MOST_RECORDS = 1_000_000
"""Read from one log: a job that compiles for days writes some ten thousand."""
_USER_CODE = re.compile(r"^Graph break in user code at (.+):(\d{1,9})\s*$", re.MULTILINE)
_REASON = re.compile(r"^(?:Graph Break )?Reason: (.+)$", re.MULTILINE)
_TITLE = re.compile(r"^(\S.*)\n\s+Explanation: (.+)$", re.MULTILINE)
_HINT = re.compile(r"^\s+Hint: (.+)$", re.MULTILINE)
_GB = re.compile(r"/gb/gb(\d{4})\.html")
_FRAME = re.compile(r'^\s*File "([^"\n]+)", line (\d{1,9}), in (.+)$', re.MULTILINE)
_LIMIT = re.compile(r"\b(?:accumulated_)?(?:recompile|cache_size)_limit\b")
_LIMIT_IS = re.compile(r"currently set to (\d{1,9})\b")
_FAILED_GUARD = re.compile(r"^\s*!?[\d/]+: (.*)$")


@dataclass(frozen=True, slots=True)
class LogFrame:
    """A place in the source. For a compiled function, `line` is the first line of its definition."""

    file: str
    line: int
    function: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "file", plain_path(self.file))


@dataclass(frozen=True, slots=True)
class LoggedBreak:
    """One graph break as Dynamo logged it. The same break is logged again for every frame that it ends."""

    compile_id: str
    reason: str
    """the break's title, e.g. "Unsupported Tensor.item() call with capture_scalar_outputs=False" """
    explanation: str
    hints: tuple[str, ...]
    gb: str
    """id in torch's registry of breaks, e.g. "GB0124"; empty before 2.8"""
    skips_frame: bool
    """Dynamo gave up on the whole frame (a break inside a loop, a context manager …): it runs eagerly"""
    stack: tuple[LogFrame, ...]
    """user code, outermost first; the last frame is the line that breaks"""

    @property
    def site(self) -> LogFrame | None:
        """The innermost frame of the break; None where the log has no stack."""
        return self.stack[-1] if self.stack else None


@dataclass(frozen=True, slots=True)
class LoggedCompile:
    compile_id: str
    """`frame/recompile`, as in `Torch-Compiled Region: frame/recompile`"""
    frame: LogFrame | None
    seconds: float | None
    """of the whole frame; None where the log does not say"""


@dataclass(frozen=True, slots=True)
class LoggedRecompile:
    compile_id: str
    reasons: tuple[str, ...]
    """the guards that failed, newest cached code first"""


@dataclass(frozen=True, slots=True)
class LoggedLimit:
    """A function of which Dynamo makes no more versions."""

    compile_id: str
    """of the version that was not made"""
    setting: str
    """of torch._dynamo.config, e.g. `recompile_limit`"""
    value: int | None


@dataclass(frozen=True)
class CompileLog:
    """What one process compiled."""

    path: str
    rank: int | None
    torch_version: str | None
    breaks: tuple[LoggedBreak, ...]
    compiles: tuple[LoggedCompile, ...]
    recompiles: tuple[LoggedRecompile, ...]
    records: int
    """structured lines read"""
    warnings: tuple[str, ...] = ()
    pid: int | None = None
    """of the process that wrote it"""
    limits: tuple[LoggedLimit, ...] = ()
    kernels: tuple[KernelSource, ...] = ()
    """lines that compiled kernels were made from, where `INDUCTOR_PROVENANCE` was set"""
    of_kernels: bool = False
    """a file of Inductor about kernels alone, which says nothing of compiling"""

    def __len__(self) -> int:
        return self.records


def load_torch_trace(path: Path, display: str) -> CompileLog:
    """Reads a TORCH_TRACE log, plain or gzipped. Raises NotACapture when no line of it is one.

    Lines that cannot be read (a killed job cuts the last one) are counted in `warnings` and left out. So is a file of Inductor
    about kernels (`provenance.is_sources`), as a log that has nothing else.
    """
    reader = _Reader()
    stream = ByteStream(path)
    if provenance.is_sources(path):
        return _of_kernels(stream, display)
    for pid, header, payload in _records(_lines(stream.pieces())):
        reader.pid = reader.pid or pid
        reader.take(header, payload)
        if reader.records >= _MOST_RECORDS:
            break
    reader.truncated = bool(stream.problem or stream.trailing) or reader.records >= _MOST_RECORDS
    if not reader.records:
        raise NotACapture(f"{display}: not a TORCH_TRACE log; no structured line in it")
    return reader.log(display)


def _of_kernels(stream: ByteStream, display: str) -> CompileLog:
    text = b""
    for piece in stream.pieces():
        text += piece
        if len(text) > _LARGEST_FILE:
            raise NotACapture(
                f"{display}: not the sources of compiled kernels; it has more than {_LARGEST_FILE >> 20} MiB"
            )
    try:
        kernels = tuple(provenance.sources_of(text))
    except (ValueError, RecursionError):
        raise NotACapture(
            f"{display}: not the sources of compiled kernels; it cannot be read as JSON of them"
        ) from None
    return CompileLog(display, None, None, (), (), (), len(kernels), kernels=kernels, of_kernels=True)


def _lines(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Lines with their ends; of a longer one than `_MOST_PAYLOAD` only the beginning."""
    rest = b""
    for piece in pieces:
        *lines, last = piece.split(b"\n")
        for line in lines:
            yield (rest + line)[:_MOST_PAYLOAD] + b"\n"
            rest = b""
        rest = (rest + last)[:_MOST_PAYLOAD]
    if rest:
        yield rest


def _records(stream: Iterator[bytes]) -> Iterator[tuple[bytes, bytes, bytes]]:
    """(process id, JSON text of the header, payload without its tabs) of each record."""
    pid, header, payload, size = b"", b"", [], 0
    for line in stream:
        if line.startswith(b"\t"):
            size += len(line)
            if header and size <= _MOST_PAYLOAD:
                payload.append(line[1:])
            continue
        if header:
            yield pid, header, b"".join(payload)
        match = _HEADER.match(line)
        pid, header = match.groups() if match else (b"", b"")
        payload, size = [], 0
    if header:
        yield pid, header, b"".join(payload)


@dataclass
class _Reader:
    records: int = 0
    unreadable: int = 0
    truncated: bool = False
    rank: int | None = None
    pid: bytes = b""
    version: str | None = None
    strings: dict[int, str] = field(default_factory=dict)
    breaks: list[LoggedBreak] = field(default_factory=list)
    frames: dict[str, LogFrame | None] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    recompiles: dict[str, tuple[str, ...]] = field(default_factory=dict)
    limits: list[LoggedLimit] = field(default_factory=list)
    kernels: list[KernelSource] = field(default_factory=list)

    def take(self, header: bytes, payload: bytes) -> None:
        """One line of the log: its JSON and the text below; what cannot be read is only counted."""
        try:
            record = msgspec.json.decode(header)
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.unreadable += 1
            return
        if not isinstance(record, dict):
            self.unreadable += 1
            return
        self.records += 1
        if isinstance(record.get("rank"), int):
            self.rank = record["rank"]
        for key, handle in _HANDLERS.items():
            if key in record:
                try:
                    handle(self, record, payload.decode("utf-8", "replace"))
                except (TypeError, ValueError, KeyError, IndexError, AttributeError):
                    self.unreadable += 1

    def log(self, display: str) -> CompileLog:
        """What all lines so far tell; `display` is the file's name in messages."""
        warnings = []
        if self.unreadable:
            warnings.append(f"{self.unreadable} lines could not be read")
        if self.truncated:
            warnings.append("the file ends early")
        compiles = (LoggedCompile(i, f, self.seconds.get(i)) for i, f in self.frames.items())
        return CompileLog(
            path=display,
            rank=self.rank,
            torch_version=self.version,
            breaks=tuple(self.breaks),
            compiles=tuple(compiles),
            recompiles=tuple(LoggedRecompile(i, r) for i, r in self.recompiles.items()),
            records=self.records,
            warnings=tuple(warnings),
            pid=int(self.pid) if self.pid.isdigit() and len(self.pid) < 19 else None,
            limits=tuple(self.limits),
            kernels=tuple(self.kernels),
        )

    def _string(self, record: dict[str, Any], _: str) -> None:
        text, index = record["str"]
        self.strings[int(index)] = str(text)

    def _started(self, record: dict[str, Any], _: str) -> None:
        top = record["dynamo_start"]["stack"][-1]
        file = top["filename"]
        name = self.strings.get(file, "") if isinstance(file, int) else str(file)
        self.frames.setdefault(_compile_id(record), LogFrame(name, int(top["line"]), str(top["name"])))

    def _metrics(self, record: dict[str, Any], _: str) -> None:
        metrics = record["compilation_metrics"]
        compile_id = str(metrics.get("compile_id") or _compile_id(record))
        if metrics.get("co_name"):
            place = LogFrame(
                str(metrics.get("co_filename") or ""),
                int(metrics.get("co_firstlineno") or 0),
                metrics["co_name"],
            )
            self.frames[compile_id] = place
        if isinstance(metrics.get("entire_frame_compile_time_s"), float | int):
            self.seconds[compile_id] = float(metrics["entire_frame_compile_time_s"])
        reason = str(metrics.get("fail_reason") or "")
        if setting := _LIMIT.search(reason):
            value = _LIMIT_IS.search(reason)
            self.limits.append(
                LoggedLimit(compile_id, setting.group(), int(value.group(1)) if value else None)
            )

    def _artifact(self, record: dict[str, Any], payload: str) -> None:
        name = record["artifact"].get("name")
        if name == "dynamo_graph_break_reason":
            self.breaks.append(_graph_break(_compile_id(record), payload))
        elif name == "recompile_reasons":
            self.recompiles[_compile_id(record)] = _reasons(payload)
        elif (
            name == provenance.STACK_TRACES and payload
        ):  # torch also says that it has none, of code from a cache
            self.kernels += provenance.sources_of(payload, _compile_id(record))
        elif name == "torch_version":
            self.version = str(msgspec.json.decode(payload.encode())["pytorch_version"])


_HANDLERS: dict[str, Callable[[_Reader, dict[str, Any], str], None]] = {
    "str": _Reader._string,
    "dynamo_start": _Reader._started,
    "compilation_metrics": _Reader._metrics,
    "artifact": _Reader._artifact,
}


def _compile_id(record: dict[str, Any]) -> str:
    """As torch/_guards.py prints a CompileId: `0/1`, under compiled autograd `!0` or `!0/0/1`."""
    inside, frame = record.get("compiled_autograd_id"), record.get("frame_id")
    parts = [] if inside is None else [f"!{inside}"]
    if frame is not None:
        parts += [str(frame), str(record.get("frame_compile_id"))]
    return "/".join(parts)


def _graph_break(compile_id: str, text: str) -> LoggedBreak:
    body, _, traceback = text.partition("User code traceback:")
    traceback = traceback.partition("\nTraceback (most recent call last)")[0]
    stack = tuple(LogFrame(f, int(n), name.strip()) for f, n, name in _FRAME.findall(traceback))
    at = _USER_CODE.search(body)
    if not stack and at:
        stack = (LogFrame(at.group(1), int(at.group(2)), ""),)
    titles = _TITLE.findall(body)
    plain = _REASON.search(body)
    reason, explanation = titles[0] if titles else (plain.group(1) if plain else "", "")
    gb = _GB.search(body)
    return LoggedBreak(
        compile_id=compile_id,
        reason=reason.strip(),
        explanation=explanation.strip(),
        hints=tuple(dict.fromkeys(h.strip() for h in _HINT.findall(body))),
        gb=f"GB{gb.group(1)}" if gb else "",
        skips_frame="skip the frame" in body or "skipping the frame" in body or "graph break in loop" in body,
        stack=stack,
    )


def _reasons(payload: str) -> tuple[str, ...]:
    """The guards that failed. The payload is a JSON list of `compile_id: guard`, or one such line."""
    try:
        decoded = msgspec.json.decode(payload.encode())
    except msgspec.DecodeError:
        decoded = payload.splitlines()
    lines = decoded if isinstance(decoded, list) else [decoded]
    matches = (_FAILED_GUARD.match(str(line)) for line in lines)
    return tuple(m.group(1).strip() for m in matches if m)
