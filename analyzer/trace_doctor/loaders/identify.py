"""Says what a file is from its first bytes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from itertools import islice
from typing import Literal

from trace_doctor.loaders import packed
from trace_doctor.loaders.pftrace.reader import is_trace as is_perfetto

HEAD = 1 << 16
"""How many decompressed bytes are looked at first."""
FAR = 1 << 22
"""How many where those hold trace events, but none that tell whose."""

# (pattern in the first bytes, what the file is). Order matters: the more specific first.
_FOREIGN: tuple[tuple[re.Pattern[bytes], str], ...] = (
    (re.compile(rb"start_time_since_epoch_in_micros|NEGOTIATE_ALLREDUCE"), "a Horovod timeline"),
    (re.compile(rb"/(?:host|device):(?:CPU|GPU|TPU|CUPTI)"), "a TensorFlow or JAX trace"),
    (re.compile(rb"CPU HIP API|CPU HSA API|rocprof|roctx_"), "a rocprof trace"),
    (re.compile(rb"JSONTraceHandler|\"callback/\w+/event/"), "a trace of the MosaicML Composer profiler"),
    (re.compile(rb"\"viztracer_metadata\"|\"FEE\""), "a VizTracer trace"),
    (re.compile(rb"devtools\.timeline|\"(?:v8|blink|loading)(?:,|\")"), "a Chrome browser trace"),
    (re.compile(rb"^\{\"perfettoTrace"), "a Perfetto trace of another program"),
    (re.compile(rb"speedscope\.app"), "a speedscope profile"),
    (
        re.compile(rb"\"schema\"\s*:\s*\"[\d.]+-chakra|\"nodes\"\s*:\s*\[\s*\{\s*\"(?:name|id)\""),
        "a PyTorch execution trace",
    ),
    (re.compile(rb"\"tool\"\s*:\s*\{[^}]*\"trace-doctor\""), "a saved trace-doctor result"),
    (re.compile(rb"^\s*\[\s*\[\s*-?\d"), "the output of export_memory_timeline"),
)

_CATEGORIES = (
    rb"(?:cpu_op|user_annotation|gpu_user_annotation|python_function|cuda_runtime|cuda_driver|kernel|gpu_memcpy|gpu_memset"
    rb"|Operator|Runtime|Kernel|Memcpy|Memset|cpu_instant_event|mtia_\w+|xpu_\w+|hpu_op|privateuse1_\w+)"
)
_TORCH = re.compile(
    rb"\"(?:schemaVersion|deviceProperties|distributedInfo)\"\s*:|\"(?:CPU|CUDA) functions\"|\"cat\"\s*:\s*\""
    + _CATEGORIES
    + rb"\""
)

WITHIN = 1 << 20
"""How many bytes of a file of another kind are searched for a trace."""
_LEAST_WITHIN = 10
"""events: fewer are not judged, and may be a quotation"""
_LIST_WITHIN = re.compile(rb"traceEvents[\\\"']*\s*:\s*\[")
_EVENT_WITHIN = re.compile(rb"\bcat[\\\"']*\s*:\s*[\\\"']+" + _CATEGORIES + rb"[\\\"']")

_EVENTS = re.compile(rb"\"traceEvents\"\s*:\s*\[")
_SNAPSHOT = re.compile(rb"device_traces|segment_type|active_allocated|segment_pool_id|allocator_settings")
_FLIGHT_RECORDER = re.compile(rb"collective_seq_id|pg_status|pg_config|nccl_comm_state")
_FLIGHT_RECORDER_JSON = re.compile(
    rb"\s*\{\s*\"(?:comm_lib_version|entries|nccl_comm_state|nccl_version|pg_config|pg_status|version)\"\s*:"
)
_LAST_NUMBER = re.compile(r"(\d{1,6})(?:\.\w+)*$")
_TORCH_TRACE = re.compile(rb"V\d{4} [\d:.]+ \d+ \S+\] (?:\[[^\]]*\] )?\{")
_LIST = re.compile(rb'\s*\[\s*\{.{0,4000}?"ph"\s*:', re.S)
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_PACKED = (
    (b"\x28\xb5\x2f\xfd", "a Zstandard file; decompress it first (zstd -d), or install zstandard"),
    (b"BZh", "a bzip2 file; decompress it first (bunzip2)"),
    (b"\xfd7zXZ", "an xz file; decompress it first (xz -d)"),
    (b"\x04\x22\x4d\x18", "an LZ4 file; decompress it first (lz4 -d)"),
    (b"\x1f\x8b", "a gzip file inside another; decompress it once (gunzip)"),
    (b"7z\xbc\xaf", "a 7-Zip archive; unpack it first"),
    (b"Rar!\x1a", "a RAR archive; unpack it first"),
    (b"\xff\xfe", "text in UTF-16; write it as UTF-8"),
    (b"\xfe\xff", "text in UTF-16; write it as UTF-8"),
    (b"PK\x03\x04", "a ZIP archive or a PyTorch checkpoint"),
    (b"\x78\x9c", "zlib data; decompress it first"),
    (b"\x78\xda", "zlib data; decompress it first"),
)
"""What may hold a capture in a form that is not read."""
_SEALED = (b"\x28\xb5\x2f\xfd", b"\x04\x22\x4d\x18", b"7z\xbc\xaf", b"Rar!\x1a")
"""of these, what is not looked into either"""
_TAR = re.compile(rb"^[^\0]{1,100}\0.{156,256}?ustar", re.S)
_OTHER_FORMATS = (
    (b"SQLite format 3", "an Nsight Systems or other SQLite database"),
    (b"\x18\x00\x00\x00\x00\x00\x00\x00", "a TensorBoard event file"),
    (b"\x89HDF", "an HDF5 file"),
)


_PACKING = r"gz|gzip|zst|zstd|xz|lzma|bz2|lz4|br|zip|7z|tar|tgz|txz|tbz2?|zlib|z|lz|lzo|sz|rar"
_PIECE = rf"\.(?:part|[a-z])?\d{{1,3}}|\.(?:{_PACKING})\.[a-z]{{2}}"
"""what `split` and archivers put behind the name of a file that they cut: `.01`, `.gz.ab`, `.part2`, `.z01`"""
_COMPRESSED = rf"(?:\.(?:{_PACKING}|tmp|part|partial))*(?:{_PIECE})?$"
_NAMED_BY_A_PROFILER = re.compile(
    rf"\.(?:pt\.trace(?:\.json)?|pftrace){_COMPRESSED}"
    rf"|^rank\d{{1,6}}\.(?:(?:light|detailed)\.json|(?:peak|boundary|oom|exception)\.pickle){_COMPRESSED}",
    re.I,
)
_AFTER_RANK = r"(?:^|[^a-z])(?:rank|worker)[_\-=]?\d{1,6}(?!\d)"
_NAMED_BY_RANK = re.compile(
    rf"{_AFTER_RANK}[^/]*\.(?:json|pickle|pkl){_COMPRESSED}"
    rf"|(?:^|[^a-z])traces?[\W_\d]*\.json{_COMPRESSED}",
    re.I,
)
_NAMED_AFTER_RANK = re.compile(_AFTER_RANK, re.I)
_NAMED_AS_PACKED_JSON = re.compile(rf"\.json(?=\.(?:{_PACKING})){_COMPRESSED}", re.I)
_NAMED_AS_PICKLE = re.compile(rf"\.(?:pickle|pkl){_COMPRESSED}", re.I)
_NAMED_BY_WORD = re.compile(
    rf"(?:^|[^a-z])(?:rank|worker|trace|snapshot)s?[_\-=]?\d*(?:\.(?:{_PACKING}))*$", re.I
)


def nothing_in(head: bytes) -> str:
    """That the first bytes hold nothing, and what is there instead; empty where they hold something."""
    if head.strip(b"\0 \t\r\n"):
        return ""
    if not head:
        return "the file is empty"
    where = f"the first {HEAD >> 10} KiB are" if len(head) >= HEAD else "the file is"
    return f"{where} blank: white space or zero bytes alone"


def torch_marks(head: bytes) -> bool:
    """The first bytes hold something that only PyTorch's profiler writes."""
    return _TORCH.search(head) is not None


def is_chrome_trace(head: bytes) -> bool:
    """The first bytes show a list of trace events, whoever wrote it."""
    return b'"traceEvents"' in head or _LIST.match(head) is not None


Kind = Literal["trace", "snapshot", "torch_trace", "flight_recorder"]


def kind(head: bytes) -> Kind | None:
    """Which kind of capture begins like this, if any."""
    if is_pickle(head):
        return "snapshot" if _SNAPSHOT.search(head) else "flight_recorder" if _is_flight_dump(head) else None
    if _TORCH_TRACE.match(head):
        return "torch_trace"
    if _packed(head) is not None:
        return None  # of an archive that is not compressed, one trace of several would be read
    begins = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")
    if (begins or _EVENTS.search(head)) and torch_marks(head):  # damage may begin a file
        return "trace"
    in_json = _FLIGHT_RECORDER_JSON.match(head.removeprefix(b"\xef\xbb\xbf"))
    return "flight_recorder" if in_json and not is_chrome_trace(head) and _is_flight_dump(head) else None


def _is_flight_dump(head: bytes) -> bool:
    return _FLIGHT_RECORDER.search(head) is not None and (b"entries" in head or b"version" in head)


def rank_of_dump(name: str) -> int | None:
    """The rank of a flight recorder dump: PyTorch writes it behind any prefix that it is given."""
    number = _LAST_NUMBER.search(name)
    return int(number[1]) if number else None


def may_begin(start: bytes) -> bool:
    """Whether a file with these first bytes, still compressed, may begin as a capture does, or hold one."""
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n")
    begins = text[:1] in (b"{", b"[", b"V") or is_pickle(start) or packed.is_packed(start)
    return not text or begins or is_perfetto(start)


def is_sealed(head: bytes) -> bool:
    """Whether a file is compressed in a form that is not looked into: nobody knows what it holds."""
    return head.startswith(_SEALED)


def holds_capture(head: bytes) -> bool:
    """Whether an archive with these first bytes holds what begins as a capture does."""
    return packed.is_packed(head) and any(map(begins_as_capture, packed.beginnings(head)))


def begins_as_capture(head: bytes) -> bool:
    """Whether a file is a capture by its first bytes alone, whatever its name: a script or a page that only quotes one is
    none, and nor is JSON that has a schema version as well."""
    if is_pickle(head) or _TORCH_TRACE.match(head):
        return kind(head) is not None
    begins = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1] in (b"{", b"[")
    return begins and (
        is_chrome_trace(head) or (b'"schemaVersion"' in head and b'"deviceProperties"' in head)
    )


def trace_within(data: bytes) -> bool:
    """Whether a file of another kind (a page, a notebook, a database) holds a trace of PyTorch as text, in quotes of its own."""
    begin = _LIST_WITHIN.search(data)
    events = _EVENT_WITHIN.finditer(data, begin.end()) if begin else ()
    return sum(1 for _ in islice(events, _LEAST_WITHIN)) == _LEAST_WITHIN


def packed_within(data: bytes) -> bool:
    """Whether a file of another kind holds a capture that is compressed or written in base64."""
    return any(trace_within(piece) or begins_as_capture(piece) for piece in packed.within(data))


def foreign(head: bytes) -> str | None:
    """The name of another tool's file, with its article; None when it is not recognised."""
    if is_pickle(head):
        return "a pickle of something else"
    return _packed(head) or _other(head)


def _packed(head: bytes) -> str | None:
    if _TAR.match(head):
        return "a tar archive; unpack it first"
    return next((name for magic, name in _PACKED if head.startswith(magic)), None)


def _other(head: bytes) -> str | None:
    for magic, name in _OTHER_FORMATS:
        if head.startswith(magic):
            return name
    return next((name for pattern, name in _FOREIGN if pattern.search(head)), None)


def claims_capture(name: str, head: bytes, is_other: Callable[[], bool] = lambda: False) -> bool:
    """Whether a file that holds no readable capture says that it is one, by its name or its first bytes: then a capture
    was met and not read. What is recognised as a file of another tool, as text or as sound data of something else
    (`is_other`) says so only where its name is one that profilers and recordings give."""
    if _NAMED_BY_A_PROFILER.search(name):
        return True
    pickled = is_pickle(head)
    if not pickled and _packed(head) is None and _other(head) is not None:
        return False
    if _NAMED_BY_RANK.search(name) or is_chrome_trace(head):
        return True
    if pickled or (_NAMED_AS_PACKED_JSON.search(name) and _packed(head) is None):
        return not is_other()
    if _NAMED_AS_PICKLE.search(name) or _NAMED_AS_PACKED_JSON.search(name):
        return True
    return _NAMED_BY_WORD.search(name) is not None and not _is_text(head)


def named_after_rank(name: str) -> bool:
    """Whether a file is named after a rank, of whatever kind it is."""
    return _NAMED_AFTER_RANK.search(name) is not None


def is_pickle(head: bytes) -> bool:
    """The first bytes are those of a pickle that Python has written since protocol 2."""
    return _PICKLE.match(head) is not None


def is_json(data: bytes, *, whole: bool) -> bool:
    """Sound JSON of no trace, or lines of it; of a file that goes on, as far as its beginning tells."""
    if is_chrome_trace(data) or not data.strip():
        return False
    if not whole:
        return data.lstrip()[:1] in (b"{", b"[") and _is_text(data)
    return _is_value(data) or all(_is_value(line) for line in data.splitlines() if line.strip())


def _is_value(data: bytes) -> bool:
    try:
        json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return False
    return True


def _is_text(head: bytes) -> bool:
    """Text, other JSON included: a whole file that was looked at, as far as its beginning tells."""
    if not head.strip(b"\0 \t\r\n") or b"\0" in head or _packed(head) is not None:
        return False
    try:
        head[:-4].decode() if len(head) >= HEAD else head.decode()
    except UnicodeDecodeError:
        return False
    return True


def refusal(display: str, head: bytes, top_level: Collection[str] = ()) -> str:
    """One line for a file that is no PyTorch capture."""
    name = foreign(head)
    if name is None:
        if is_chrome_trace(head) or "traceEvents" in top_level:
            name = "a Chrome trace of another program"
        elif head.lstrip()[:1] in (b"{", b"["):
            name = "JSON without trace events"
        else:
            name = "neither JSON nor a pickle of protocol 2 or newer"
    script = (
        f" (trace-doctor record -- python {display} records the script)" if display.endswith(".py") else ""
    )
    return f"{display}: {name}, not a PyTorch profiler trace or memory snapshot{script}"
