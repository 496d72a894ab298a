"""The repeated blocks of a model: `self.layers = nn.ModuleList([Block() for _ in range(n)])`, and where they are called."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from trace_doctor.program.dataflow import dataflow_of
from trace_doctor.program.script import Script, assigned_names, literal

_LISTS = ("torch.nn.ModuleList", "torch.nn.Sequential")


@dataclass(frozen=True)
class Blocks:
    """A list of equal blocks. `path` is how methods of the owning class reach it, without `self.`."""

    path: str
    owner: cst.ClassDef
    call: cst.Call
    block: cst.ClassDef | None
    """the class of the blocks, where this script defines it"""
    sequential: bool


def repeated_blocks(script: Script, owner: cst.ClassDef | None = None) -> list[Blocks]:
    """Lists of blocks made by a comprehension, in one class or in all."""
    lists = []
    for call in script.calls(*_LISTS):
        holder = script.nearest(call, cst.ClassDef)
        element = _element(call)
        path = _path(script, call)
        if element is None or path is None or holder is None or (owner is not None and holder is not owner):
            continue
        definition = dataflow_of(script).definition(element.func)
        block = definition if isinstance(definition, cst.ClassDef) else None
        lists.append(Blocks(path, holder, call, block, script.callee(call) == "torch.nn.Sequential"))
    return lists


def _element(call: cst.Call) -> cst.Call | None:
    """`Block(...)` of `[Block(...) for _ in ...]`, given as the list or spread into the arguments."""
    comprehension = call.args[0].value if len(call.args) == 1 else None
    element = comprehension.elt if isinstance(comprehension, cst.ListComp | cst.GeneratorExp) else None
    return element if isinstance(element, cst.Call) else None


def _path(script: Script, call: cst.Call) -> str | None:
    """`layers` of `self.layers = nn.ModuleList(...)`; `transformer.h` of `self.transformer = nn.ModuleDict(dict(h=...))`."""
    keys: list[str] = []
    for up in script.ancestors(call):
        if isinstance(up, cst.Arg) and up.keyword is not None:
            keys.append(up.keyword.value)
        elif isinstance(up, cst.DictElement):
            key = literal(up.key)
            if not isinstance(key, str):
                return None
            keys.append(key)
        elif isinstance(up, cst.Assign):
            target = assigned_names(up)[0] or "" if len(up.targets) == 1 else ""
            path = ".".join([target.removeprefix("self."), *reversed(keys)])
            return path if target.startswith("self.") else None
        elif isinstance(up, cst.BaseStatement):
            return None
    return None
