"""Values that a script reads from a configuration file: `yaml.safe_load(open("train.yaml"))["data"]["num_workers"]`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import libcst as cst

from trace_doctor.fixes.frameworks.documents import Document
from trace_doctor.fixes.frameworks.launchers import CONFIG, config_files, documents
from trace_doctor.program.edits import Edit
from trace_doctor.program.place import Place
from trace_doctor.program.script import Script, argument, key_of, literal, method_name, receiver

_LOADERS = ("yaml.safe_load", "yaml.full_load", "yaml.load", "json.load", "omegaconf.OmegaConf.load")


@dataclass(frozen=True)
class Key:
    """A number of a configuration file."""

    document: Document
    path: tuple[str, ...]
    value: int

    def edits(self, value: int) -> list[Edit]:
        """What sets it to another number."""
        values: Any = value
        for key in reversed(self.path):
            values = {key: values}
        return self.document.merge(values)


def configured(place: Place, script: Script, node: cst.BaseExpression) -> Key | None:
    """The one key of a configuration file that an expression reads; None where that cannot be told."""
    path: tuple[str, ...] = ()
    while True:
        key, inner = _item(node)
        if key is not None and inner is not None:
            path, node = (key, *path), inner
            continue
        origins = place.program.of(script, node)
        if len(origins) != 1 or origins[0][1] is node:
            break
        script, node = origins[0]
    if not path or not isinstance(node, cst.Call) or script.callee(node) not in _LOADERS:
        return None
    keys = [
        Key(document, path, value)
        for document in _documents(place, script, node)
        if isinstance(value := document.value(*path), int) and not isinstance(value, bool)
    ]
    return keys[0] if len(keys) == 1 else None


def _item(node: cst.BaseExpression) -> tuple[str | None, cst.BaseExpression | None]:
    """`"key"` and what it is taken from: `x["key"]`, `x.get("key", 0)`, `x.key`."""
    if isinstance(node, cst.Subscript):
        return key_of(node), node.value
    if isinstance(node, cst.Call) and method_name(node) == "get" and node.args:
        key = literal(node.args[0].value)
        return (key if isinstance(key, str) else None), receiver(node)
    return (node.attr.value, node.value) if isinstance(node, cst.Attribute) else (None, None)


def _documents(place: Place, script: Script, call: cst.Call) -> Iterator[Document]:
    """The files that a call may load: the one that it names, else all."""
    arg = argument(call, "stream", 0) or argument(call, "fp", 0)
    names = [arg.value] if arg is not None else []
    for where, origin in place.program.of(script, arg.value) if arg is not None else ():
        if isinstance(origin, cst.Call) and where.callee(origin) == "open" and origin.args:
            names.append(origin.args[0].value)
    paths = [path for name in names if isinstance(path := literal(name), str)]
    return documents(config_files(place, paths[0]) if paths else place.program.files(*CONFIG))
