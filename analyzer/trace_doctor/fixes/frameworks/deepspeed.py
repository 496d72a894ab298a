"""The configuration that DeepSpeed reads: a JSON file or a dictionary of the script, and what of it must agree with the
arguments of a Trainer.

Read from the sources of DeepSpeed 0.19.8 (runtime/config.py, zero/config.py, engine.py), transformers 5.23.0
(integrations/deepspeed.py) and accelerate 1.15.0 (utils/dataclasses.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import libcst as cst

from trace_doctor.fixes.frameworks.documents import OTHER, Document, Values
from trace_doctor.fixes.frameworks.launchers import config_files, documents, starts
from trace_doctor.fixes.literals import source_text
from trace_doctor.program.edits import Candidate, Change, Edit, NoEdit, change_of, together
from trace_doctor.program.place import Place, candidate, refusal
from trace_doctor.program.queries.arguments import add_entries
from trace_doctor.program.queries.loops import method_calls
from trace_doctor.program.queries.values import where_set
from trace_doctor.program.script import Script, assigned_names, dotted, key_of, literal

AUTO = "auto"
"""the value that a Trainer or an Accelerator replaces by its own argument"""
_KEYS = ("zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size")
"""one of them is in every configuration"""
_OPTIONS = ("deepspeed", "deepspeed_config", "deepspeed_config_file", "ds_config")
_ARGUMENTS = {
    "deepspeed.initialize": ("config", "config_params"),
    "DeepSpeedPlugin": ("hf_ds_config",),
    "DeepSpeedStrategy": ("config",),
}
_WORDS = ("deepspeed", "DeepSpeed")
_ALIKE: Mapping[str, tuple[str, ...]] = {
    "bf16": ("bf16", "enabled"),
    "fp16": ("fp16", "enabled"),
    "accumulate": ("gradient_accumulation_steps",),
    "batch_size": ("train_micro_batch_size_per_gpu",),
}
"""the Trainer's wishes that the configuration repeats: two that differ raise ValueError"""
_CHANGES = ("update", "setdefault", "pop", "popitem", "clear")
_OTHER_TYPE = {"bf16": "fp16", "fp16": "bf16"}


@dataclass(frozen=True)
class InScript:
    """A configuration that is a dictionary of the script, with the interface of `Document`."""

    file: Script
    node: cst.Dict
    changed_keys: frozenset[str] = frozenset()
    """keys that are set or removed elsewhere; with "*" any can be"""

    def value(self, *path: str) -> object:
        """None where nothing is set; OTHER for a dictionary, and for what the script changes elsewhere."""
        if path[0] in self.changed_keys:
            return OTHER
        node: cst.BaseExpression | None = self.node
        for key in path:
            node = self._entries(node).get(key) if isinstance(node, cst.Dict) else None
        if node is None:
            return None
        return OTHER if isinstance(node, cst.Dict) else literal(node)

    def candidate(self, *path: str) -> Candidate:
        """The dictionary's first line, for any path."""
        return candidate(self.file, self.node)

    def merge(self, values: Values) -> list[Edit]:
        """Raises NoEdit where the script changes the dictionary elsewhere, or an entry is no plain value."""
        if self.changed_keys & {*values, "*"}:
            raise refusal(self.file, self.node, "the dictionary is changed in other places")
        return list(self._merge(self.node, values))

    def _merge(self, node: cst.Dict, values: Values) -> Iterator[Edit]:
        entries, additions = self._entries(node), {}
        if len(entries) != len(node.elements):
            raise refusal(self.file, node, "the dictionary has entries of other kinds")
        for key, value in values.items():
            there = entries.get(key)
            if there is None:
                additions[key] = source_text(value)
            elif isinstance(value, Mapping):
                if not isinstance(there, cst.Dict):
                    raise refusal(self.file, there, f"{key} is no dictionary here")
                yield from self._merge(there, value)
            elif (now := literal(there)) is ...:
                raise refusal(self.file, there, f"{key} comes from something else")
            elif now != value:
                start, end = self.file.outer_span(there)
                yield Edit(start, end, source_text(value), f"entry:{start}:{key}", source_text(value))
        yield from add_entries(self.file, node, additions) if additions else ()

    def _entries(self, node: cst.Dict) -> dict[str, cst.BaseExpression]:
        return {
            key: e.value
            for e in node.elements
            if isinstance(e, cst.DictElement) and isinstance(key := literal(e.key), str)
        }


Config = Document | InScript


# ---------------------------------------------------------------------- which one


def find_config(place: Place) -> Config | None:
    """The configuration of the program: the one that the script or the command that starts it names, else the only one
    of the source folder. None where there is none; raises NoEdit where it cannot be told."""
    for configs in (list(_in_code(place)), list(_in_commands(place))):
        unique = {(c.file.name, id(getattr(c, "node", None))): c for c in configs}
        if unique:
            return _one(list(unique.values()), "configurations of DeepSpeed are named")
    if not place.program.scripts_with(*_WORDS) and not any(c.option("deepspeed") for c in starts(place)):
        return None
    every = [d for d in documents(place.program.files(".json")) if any(d.find(k) for k in _KEYS)]
    return _one(every, "files can be DeepSpeed's configuration")


def _one(configs: Sequence[Config], what: str) -> Config | None:
    if len(configs) > 1:
        where = [c.candidate() for c in configs]
        raise NoEdit("ambiguous", f"{len(configs)} {what}", where, framework="deepspeed")
    return configs[0] if configs else None


def no_edit(why: str, *where: Candidate) -> NoEdit:
    """What DeepSpeed would not take."""
    return NoEdit("display", why, where, framework="deepspeed")


def _in_code(place: Place) -> Iterator[Config]:
    for script in place.program.scripts_with(*_WORDS):
        for call in script.all(cst.Call):
            for arg in call.args:
                if arg.keyword is not None and arg.keyword.value in _names(script, call):
                    yield from _configs(place, script, arg.value)


def _names(script: Script, call: cst.Call) -> tuple[str, ...]:
    """Arguments of a call that take DeepSpeed's configuration."""
    name = script.callee(call)
    if name.split(".")[0] in ("transformers", "trl"):
        return ("deepspeed",)
    return _ARGUMENTS.get(name) or _ARGUMENTS.get(name.split(".")[-1], ())


def _configs(place: Place, script: Script, node: cst.BaseExpression) -> Iterator[Config]:
    """What an expression stands for: a dictionary, or the file of a path."""
    for where, origin in place.program.of(script, node):
        if isinstance(origin, cst.Dict):
            names = assigned_names(where.parent(origin))[:1]
            yield InScript(
                where,
                origin,
                _changed_keys(script, dotted(node)).union(*(_changed_keys(where, n) for n in names)),
            )
            continue
        path = literal(origin)
        if (default := where_set(where, origin, place.program)) is not None:
            path = literal(default.value)
        if isinstance(path, str):
            yield from (Document(file) for file in config_files(place, path) if file.name.endswith(".json"))


def _changed_keys(script: Script, name: str | None) -> frozenset[str]:
    """Keys of a dictionary that a script sets or removes by its name; "*" where that cannot be seen."""
    keys: set[str] = set()
    if name is None:
        return frozenset()
    for item in script.all(cst.Subscript):
        changes = isinstance(script.parent(item), cst.AssignTarget | cst.Del | cst.AugAssign)
        if changes and dotted(item.value) == name:
            keys.add(key_of(item) or "*")
    for method in _CHANGES:
        keys |= {"*" for _, receiver in method_calls(script, method) if dotted(receiver) == name}
    return frozenset(keys)


def _in_commands(place: Place) -> Iterator[Document]:
    for command in starts(place):
        path = command.option(*_OPTIONS)
        settings = command.option("config_file")
        for file in config_files(place, settings) if settings else ():
            inside = Document(file).value("deepspeed_config", "deepspeed_config_file")
            path = inside if isinstance(inside, str) else path
        for file in config_files(place, path) if path else ():
            if file.name.endswith(".json"):
                yield Document(file)


# ---------------------------------------------------------------------- what it is told


def in_config(place: Place, wishes: Mapping[str, str]) -> Change | None:
    """The change of the configuration of a script that runs DeepSpeed's engine itself; None where it has no word for it."""
    if len(wishes) != 1 or (wish := next(iter(wishes))) not in _OTHER_TYPE:
        return None
    config = find_config(place)
    if config is None:
        raise no_edit("the configuration of DeepSpeed was not found")
    _refuse_other_type(config, wish)
    return change(config, {wish: {"enabled": True}})


def in_agreement(place: Place, own: Change, wishes: Mapping[str, str]) -> Change:
    """A change of a Trainer's arguments, with what the program's configuration says of the same: the Trainer raises where
    the two differ. Most of them it does not repeat, and then it does not matter which of several files it is."""
    if _ALIKE.keys().isdisjoint(wishes) or (config := find_config(place)) is None:
        return own
    more: dict[str, Any] = {}
    for wish, text in wishes.items():
        if (path := _ALIKE.get(wish)) is None:
            continue
        if wish in _OTHER_TYPE:
            _refuse_other_type(config, wish)
        now, new = config.value(*path), literal(cst.parse_expression(text))
        if now in (AUTO, new) or (now is None and wish not in _OTHER_TYPE):
            continue
        follows = wish == "batch_size" and "accumulate" not in wishes
        if follows and config.value("train_batch_size") not in (None, AUTO):
            why = "train_batch_size of the DeepSpeed configuration has to follow"
            raise no_edit(why, config.candidate("train_batch_size"))
        more[path[0]] = {path[1]: AUTO} if len(path) > 1 else new
    return together(own, change(config, more)) if more else own


def _refuse_other_type(config: Config, wish: str) -> None:
    other = _OTHER_TYPE[wish]
    now = config.value(other, "enabled")
    if now in (True, OTHER) or (now is None and config.value(other) is not None):
        why = f"{other} {'is' if now is True else 'may be'} enabled, which excludes {wish}"
        raise no_edit(why, config.candidate(other, "enabled"))


def change(config: Config, values: Values, *notes: str) -> Change:
    """The change after which a configuration says what is wanted. Raises NoEdit where it does."""
    return change_of(config.file, config.merge(values), "says this", "deepspeed", notes)
