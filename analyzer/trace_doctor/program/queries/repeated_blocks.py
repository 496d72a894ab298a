"""The repeated blocks of a model: `self.layers = nn.ModuleList([Block() for _ in range(n)])`, and where they are called."""

from __future__ import annotations

from dataclasses import dataclass

import libcst as cst

from trace_doctor.program.script import Script, assigned_names, literal

_LISTS = ("torch.nn.ModuleList", "torch.nn.Sequential")


@dataclass(frozen=True)
class Blocks:
    """A list of equal blocks. `path` is how methods of the owning class reach it, without `self.`."""

    path: str
    owner: cst.ClassDef
    sequential: bool


def repeated_blocks(script: Script) -> list[Blocks]:
    """Lists of blocks made by a comprehension, in all classes."""
    lists = []
    for call in script.calls(*_LISTS):
        holder = script.nearest(call, cst.ClassDef)
        path = _path(script, call)
        if _is_comprehension(call) and path is not None and holder is not None:
            lists.append(Blocks(path, holder, script.callee(call) == "torch.nn.Sequential"))
    return lists


def _is_comprehension(call: cst.Call) -> bool:
    """Whether it takes `[Block(...) for _ in ...]`, as the list or spread into the arguments."""
    comprehension = call.args[0].value if len(call.args) == 1 else None
    return isinstance(comprehension, cst.ListComp | cst.GeneratorExp) and isinstance(
        comprehension.elt, cst.Call
    )


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
