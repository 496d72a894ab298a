"""Files beside a trace that say what the nodes of its CUDA graphs are: annotations of the capture (a pickle that scripts write of
`torch.cuda._graph_annotations`, torch 2.13) and Python stacks of the capture (gzipped JSON, torch 2.15).

Both are optional: what is no such file, or cannot be read, is passed over and named in a warning of the trace.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import msgspec

from trace_doctor.isolation import Crashed, OutOfMemory, OutOfTime, isolated
from trace_doctor.loaders.kineto.meta import rank_in_name
from trace_doctor.loaders.plain_pickle import PlainUnpickler
from trace_doctor.loaders.stream import ByteStream
from trace_doctor.run import GraphNode, Run
from trace_doctor.user_frames import Frame, plain_path

_ANNOTATIONS = re.compile(r"kernel_annotations_rank(\d{1,6})_.*\.pkl(?:\.gz)?")
_STACKS = re.compile(r".*stack.*\.json(?:\.gz)?", re.IGNORECASE)
_STACKS_BEGIN = re.compile(rb'\s*\{\s*"\d{1,20}"\s*:\s*"[^"\n]{1,4000}?:\d{1,9}:')
_FRAME = re.compile(r"(.+):(\d{1,9}):(.+)")
INLINE = "cudaGraphInlineAnnotated"
"""top-level field of a trace into which torch 2.14 and 2.15 wrote annotations"""
_FAMILIAR_KEYS = ("name", "str", "annotation")
_LARGEST = 64 << 20
"""bytes, unpacked: a graph of 5,000 nodes has some 1 MB"""
_MOST_NODES = 1_000_000
_LONGEST_TEXT = 200
_MOST_FRAMES = 64
_MEMORY, _SECONDS = 1 << 30, 20


def is_companion(path: Path) -> bool:
    """Whether a file says what nodes of CUDA graphs are, and is no capture by itself."""
    if _ANNOTATIONS.fullmatch(path.name):
        return True
    return _STACKS.fullmatch(path.name) is not None and _begins_as_stacks(path)


def with_graph_nodes(run: Run, file: Path) -> Run:
    """The trace with what files beside it, or one folder above, say of its nodes; unchanged without any."""
    labels: dict[int, str] = {}
    stacks: dict[int, tuple[Frame, ...]] = {}
    warnings = []
    for companion in _of_rank(file, run.rank):
        try:
            if _ANNOTATIONS.fullmatch(companion.name):
                labels |= _labels(_bytes(companion))
            else:
                stacks |= _stacks(_bytes(companion))
        except (OSError, ValueError, OutOfMemory, OutOfTime, Crashed, MemoryError, RecursionError):
            warnings.append(
                f"{companion.name} cannot be read: what the nodes of CUDA graphs are is not known"
            )
    if not labels and not stacks and not warnings:
        return run
    nodes = {
        key: GraphNode(labels.get(key, ""), stacks.get(key, ())) for key in labels.keys() | stacks.keys()
    }
    return replace(run, graph_nodes=nodes, warnings=[*run.warnings, *warnings])


def _of_rank(trace: Path, rank: int) -> Iterator[Path]:
    """Of each kind the only file of the rank beside the trace, else in the folder above: of several none is known to fit."""
    for pattern in (_ANNOTATIONS, _STACKS):
        for folder in (trace.absolute().parent, trace.absolute().parent.parent):
            try:
                fitting = [
                    path
                    for path in folder.iterdir()
                    if pattern.fullmatch(path.name)
                    and rank_in_name(path.name) in (rank, None)
                    and path != trace.absolute()
                    and is_companion(path)
                    and _is_readable(path)
                ]
            except OSError:
                continue
            if fitting:
                yield from fitting if len(fitting) == 1 else ()
                break


def _is_readable(path: Path) -> bool:
    """Whether it is a file with something in it: what the kernel makes up on reading has no size, and may never end."""
    return path.is_file() and path.stat().st_size > 0


def _begins_as_stacks(path: Path) -> bool:
    try:
        return _is_readable(path) and _STACKS_BEGIN.match(ByteStream(path).head(1 << 13)) is not None
    except OSError:
        return False


def _bytes(path: Path) -> bytes:
    """Raises ValueError for a file that is too large or cut off."""
    stream, parts, size = ByteStream(path), [], 0
    for piece in stream.pieces():
        size += len(piece)
        if size > _LARGEST:
            raise ValueError("too large")
        parts.append(piece)
    if stream.problem:
        raise ValueError(stream.problem)
    return b"".join(parts)


# -- annotations -------------------------------------------------------------------------------------------------


class _Unpickler(PlainUnpickler):
    """Plain data, and the `defaultdict(list)` that torch keeps annotations in, which becomes a dict."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in (("collections", "defaultdict"), ("builtins", "list")):
            return _empty
        return super().find_class(module, name)


def _empty(*_: object) -> dict[Any, Any]:
    return {}


def _labels(data: bytes) -> dict[int, str]:
    """By id of the node. Raises ValueError for a pickle of something else."""
    return isolated(lambda: _labels_of(data), memory=_MEMORY, seconds=_SECONDS)


def _labels_of(data: bytes) -> dict[int, str]:
    try:
        annotations = _Unpickler(BytesIO(data)).load()
    except Exception as error:  # a hostile pickle can raise anything
        raise ValueError(type(error).__name__) from None
    if not isinstance(annotations, dict) or len(annotations) > _MOST_NODES:
        raise ValueError("no annotations")
    return {key: text for key, value in annotations.items() if type(key) is int and (text := _label(value))}


def _label(annotation: Any) -> str:
    """The name that a node was given: of several the last, as torch writes them into a trace. Older files have bare texts."""
    label = ""
    for one in annotation if isinstance(annotation, list | tuple) else [annotation]:
        named = one if isinstance(one, dict) else {"name": one}
        label = next((t for k in _FAMILIAR_KEYS if isinstance(t := named.get(k), str) and t), label)
    return label[:_LONGEST_TEXT]


def label_in(args: dict[str, Any]) -> str:
    """The annotation that torch 2.15 wrote among the arguments of the node itself."""
    return _label(args)


# -- stacks ------------------------------------------------------------------------------------------------------


def _stacks(data: bytes) -> dict[int, tuple[Frame, ...]]:
    """By id of the node. Raises ValueError for something else."""
    stacks = msgspec.json.decode(data)
    if not isinstance(stacks, dict) or len(stacks) > _MOST_NODES:
        raise ValueError("no stacks")
    known: dict[str, tuple[Frame, ...]] = {}  # of many nodes it is the same text
    return {
        int(key): known.setdefault(text, stack)
        for key, text in stacks.items()
        if key.isdecimal() and len(key) <= 20 and isinstance(text, str)
        if (stack := known.get(text) or tuple(_frames(text)))
    }


def _frames(text: str) -> Iterator[Frame]:
    for line in text.split("\n", _MOST_FRAMES)[:_MOST_FRAMES]:
        if match := _FRAME.fullmatch(line.strip()):
            yield Frame(plain_path(match.group(1)), int(match.group(2)), match.group(3))
