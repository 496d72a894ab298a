"""Arguments of the classes that frameworks are configured by: set where they are written, in the call, in an object that
is passed to it, in a default, or added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import libcst as cst

from trace_doctor.fixes.batch_sizes import refuse_divided
from trace_doctor.fixes.frameworks.trainers import Plugin, Setting
from trace_doctor.fixes.literals import source_text
from trace_doctor.program.edits import Change, Edit, Gathered, NoEdit
from trace_doctor.program.place import Place, already, refusal
from trace_doctor.program.queries.arguments import Argument, Arguments, add_entries, set_value
from trace_doctor.program.queries.imports import name_for
from trace_doctor.program.queries.values import set_origin, where_set
from trace_doctor.program.script import Script, argument, literal

Call = tuple[Script, cst.Call]
_AT_LEAST = ("num_workers", "prefetch_factor", "log_every")
_ANY = ("compile_mode", "compile_backend")
"""wishes that any value fulfils"""


def set_arguments(
    place: Place, call: Call, framework: str, table: Mapping[str, Setting], wishes: Mapping[str, str]
) -> Change:
    """Sets what is wanted as arguments of a construction. Raises NoEdit where they are there, or cannot be seen."""
    edits = Gathered()
    _Construction(place, call, framework, edits).tell(table, wishes)
    script, node = call
    if not edits.files:
        if not edits.notes:
            raise already(script, node, "sets this already", framework)
        why = "; ".join(note.replace(" also ", " only: ") for note in edits.notes)
        raise NoEdit("display", f"{why}; no file here requires that release", framework=framework)
    return edits.change(script, script.line(node), framework)


def is_available(place: Place, framework: str, setting: Setting | Plugin | None) -> bool:
    """Whether every release that the program can run on has a setting."""
    version = place.packages.get(framework)
    return setting is None or setting.since is None or (version is not None and version >= setting.since)


def needs(framework: str, setting: Setting, value: str) -> str:
    """A note for a setting that the pinned release may not have; the setting has a `since`, or its plugin has."""
    since = ".".join(map(str, setting.since or (setting.plugin.since if setting.plugin else None) or ()))
    return f"with {framework} {since} or newer also {setting.name}={setting.value.format(value)}"


class _Construction:
    """A call that constructs an object of a framework: what it is passed, and edits of that."""

    def __init__(self, place: Place, call: Call, framework: str, edits: Gathered) -> None:
        self.place, self.framework, self.edits = place, framework, edits
        self.script, self.call = call
        self.arguments = Arguments(place.program, *call, {})
        self.additions: dict[str, str] = {}

    def tell(self, table: Mapping[str, Setting], wishes: Mapping[str, str]) -> None:
        """Sets what is wanted by the settings of a table, or notes which release it needs."""
        if self.arguments.hidden:
            raise self.refusal(f"the arguments come from {self.arguments.hidden}: set them there")
        inside: dict[Plugin, dict[str, str]] = {}
        for wish, value in wishes.items():
            setting = table[wish]
            if setting.always and not is_available(self.place, self.framework, setting):
                setting = replace(setting, value=setting.always, since=None)
            if not all(is_available(self.place, self.framework, it) for it in (setting, setting.plugin)):
                self.edits.notes.append(needs(self.framework, setting, value))
            elif setting.plugin is not None:
                inside.setdefault(setting.plugin, {})[wish] = value
            else:
                self.refuse_excluded(setting)
                arg, text = self.arguments.find(setting.name), setting.value.format(value)
                if arg is None:
                    self.additions[setting.name] = text
                else:
                    self.change_argument(arg, wish, text, setting.instead_of)
        for plugin, group in inside.items():
            self.tell_plugin(plugin, {wish: replace(table[wish], plugin=None) for wish in group}, group)
        self.leave_out(wishes)
        if self.additions:
            self.edits.keep(*self.arguments.add(None, self.additions))

    def refusal(self, why: str) -> NoEdit:
        """The reason at the call, to be raised."""
        return refusal(self.script, self.call, why, framework=self.framework)

    def refuse_excluded(self, setting: Setting | Plugin) -> None:
        """Raises NoEdit where the call sets what excludes the setting."""
        for other in setting.excludes:
            there = self.arguments.find(other)
            if there is not None and literal(there.value) not in (None, False):
                raise self.refusal(f"{other} is set, which excludes {setting.name}")

    def change_argument(self, arg: Argument, wish: str, text: str, instead_of: tuple[object, ...]) -> None:
        """Sets an argument that is there to what is wished, where it is not that, or better, or chosen for another reason
        than the values it may take the place of."""
        program, here = self.place.program, (arg.script, arg.value)
        now, goal = literal(arg.value), literal(cst.parse_expression(text))
        if isinstance(goal, dict):
            if not isinstance(arg.value, cst.Dict) or not isinstance(now, dict):
                raise refusal(*here, f"{arg.name} is set somewhere else")
            if any(k in now and now[k] != v for k, v in goal.items()):
                raise refusal(*here, f"{arg.name} says otherwise on purpose")
            missing = {k: source_text(v) for k, v in goal.items() if k not in now}
            self.edits.keep(arg.script, add_entries(arg.script, arg.value, missing))
            return
        origin = where_set(*here, program) if now is ... else None
        if now is ... and origin is None:
            raise refusal(*here, f"{arg.script.code(arg.value)} is set somewhere else")
        now = literal(origin.value) if origin is not None else now
        if instead_of and now is not None and now not in (goal, *instead_of):
            raise refusal(*here, f"{arg.name}={now} is set on purpose")
        if origin is not None and wish == "batch_size":
            refuse_divided(origin, program)
        if _fulfils(wish, now, goal):
            return
        if origin is not None:
            self.edits.keep(origin.script, set_origin(origin, text, "default"))
        else:
            self.edits.keep(arg.script, [set_value(arg, text)])

    def leave_out(self, wishes: Mapping[str, str]) -> None:
        """What is the default already, or raises without workers, is not added."""
        if wishes.get("pin_memory") == "True":
            self.additions.pop("dataloader_pin_memory", None)
        workers = "dataloader_num_workers"
        if workers not in self.additions and not self.arguments.find(workers):
            self.additions.pop("dataloader_prefetch_factor", None)
            self.additions.pop("dataloader_persistent_workers", None)

    def tell_plugin(self, plugin: Plugin, table: Mapping[str, Setting], wishes: Mapping[str, str]) -> None:
        """Arguments of the object that the call is passed: of the one that is there, else of a new one."""
        script, arg = self.script, self.arguments.find(plugin.name)
        if arg is not None and literal(arg.value) is not None:
            origins = self.place.program.of(arg.script, arg.value)
            where, construction = origins[0] if len(origins) == 1 else (script, None)
            if not isinstance(construction, cst.Call):
                why = f"{plugin.name} is made somewhere else"
                raise refusal(arg.script, arg.value, why, framework=self.framework)
            _Construction(self.place, (where, construction), self.framework, self.edits).tell(table, wishes)
            return
        self.refuse_excluded(plugin)
        texts = {table[w].name: table[w].value.format(v) for w, v in wishes.items()}
        simple = self.arguments.find(plugin.replaces) if plugin.replaces else None
        if simple is not None and literal(simple.value) not in (None, "no", ..., "NO"):
            if "compile" in table:
                texts[table["compile"].name] = script.code(simple.value)
            self.edits.notes.append(f"{plugin.replaces} and {plugin.name} exclude each other")
        name, imports = name_for(script, plugin.constructor, self.call)
        text = f"{name}({', '.join(f'{k}={v}' for k, v in texts.items())})"
        self.edits.keep(script, imports)
        if simple is None:
            self.additions[plugin.name] = text
            return
        own = argument(self.call, plugin.replaces)
        if own is None or literal(simple.value) is ...:
            raise self.refusal(f"{plugin.replaces} is set somewhere else")
        start, end = script.span(own)[0], script.outer_span(own.value)[1]
        self.edits.keep(
            script, [Edit(start, end, f"{plugin.name}={text}", f"arg:{start}:{plugin.name}", text)]
        )


def _fulfils(wish: str, now: object, goal: object) -> bool:
    if wish in _AT_LEAST and isinstance(now, int) and isinstance(goal, int):
        return now >= goal
    if wish == "compile":
        return now not in (None, False, "no", "NO")
    return now is not None if wish in _ANY else now == goal
