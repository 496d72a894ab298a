"""Arguments of the classes that frameworks are configured by: set where they are written, in the call, in an object that
is passed to it, in a default, or added."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import libcst as cst

from trace_doctor.fixes.frameworks.trainers import Plugin, Setting
from trace_doctor.fixes.nodes import written
from trace_doctor.program.edits import Candidate, Change, Edit, NoEdit, union
from trace_doctor.program.place import Place, candidate, refusal
from trace_doctor.program.queries.arguments import Arguments, Given, add_entries, set_value
from trace_doctor.program.queries.imports import name_for
from trace_doctor.program.queries.values import divided, set_origin, where_set
from trace_doctor.program.script import Script, literal
from trace_doctor.program.text_file import TextFile

Call = tuple[Script, cst.Call]
Edits = dict[str, tuple[TextFile, list[Edit]]]
"""file name -> the file and what changes in it"""
_AT_LEAST = ("num_workers", "prefetch_factor", "log_every")
_ANY = ("compile_mode", "compile_backend")
"""wishes that any value fulfils"""


def set_arguments(
    place: Place, call: Call, framework: str, table: Mapping[str, Setting], wanted: Mapping[str, str]
) -> Change:
    """Sets what is wanted as arguments of a construction. Raises NoEdit where they are there, or cannot be seen."""
    edits: Edits = {}
    notes: list[str] = []
    _set(place, call, framework, table, wanted, edits, notes)
    script, node = call
    if not edits:
        why = "; ".join(notes) or f"{script.name}:{script.line(node)} sets this already"
        raise NoEdit("display" if notes else "already", why, framework=framework)
    return joined(edits, script, script.line(node), notes, framework)


def joined(edits: Edits, main: TextFile, line: int, notes: list[str], framework: str) -> Change:
    """One change of all files; about `line` of the main one where that changes, else about its first edit."""
    files = sorted(((f, tuple(union([e]))) for f, e in edits.values()), key=lambda f: f[0].name != main.name)
    first, changed = files[0]
    line = line if first.name == main.name else first.line_of(changed[0].start)
    return Change(first, changed, line, "unsafe", tuple(notes), framework, more=tuple(files[1:]))


def together(made: Change, also: Change) -> Change:
    """Two changes as one, which is about what the first is about."""
    edits: Edits = {}
    for file, changes in (*made.files, *also.files):
        keep(edits, file, list(changes))
    notes = list(dict.fromkeys([*made.notes, *also.notes]))
    whole = joined(edits, made.script, made.line, notes, made.framework or "")
    return replace(whole, framework=made.framework)


def keep(edits: Edits, file: TextFile, more: list[Edit]) -> None:
    if more:
        edits.setdefault(file.name, (file, []))[1].extend(more)


def known(place: Place, framework: str, setting: Setting | Plugin) -> bool:
    """Whether every release that the program can run on has a setting."""
    version = place.packages.get(framework)
    return setting.since is None or (version is not None and version >= setting.since)


def needs(framework: str, setting: Setting, value: str) -> str:
    since = ".".join(map(str, setting.since or (setting.plugin.since if setting.plugin else None) or ()))
    return f"with {framework} {since} or newer also {setting.name}={setting.value.format(value)}"


# ---------------------------------------------------------------------- one call


def _set(
    place: Place,
    call: Call,
    framework: str,
    table: Mapping[str, Setting],
    wanted: Mapping[str, str],
    edits: Edits,
    notes: list[str],
) -> None:
    script, node = call
    arguments = Arguments(place.program, script, node, {})
    here = [candidate(script, node)]
    if arguments.hidden:
        why = f"the arguments come from {arguments.hidden}: set them there"
        raise refusal(script, node, why, framework=framework)
    added: dict[str, str] = {}
    inside: dict[Plugin, dict[str, str]] = {}
    for wish, value in wanted.items():
        setting = table[wish]
        if setting.always and not known(place, framework, setting):
            setting = replace(setting, value=setting.always, since=None)
        if not known(place, framework, setting) or (
            setting.plugin is not None and not known(place, framework, setting.plugin)
        ):
            notes.append(needs(framework, setting, value))
            continue
        if setting.plugin is not None:
            inside.setdefault(setting.plugin, {})[wish] = value
            continue
        _refuse_excluded(arguments, setting.name, setting.excludes, here, framework)
        text = setting.value.format(value)
        given = arguments.find(setting.name)
        if given is None:
            added[setting.name] = text
        else:
            _change(place, given, wish, text, edits, setting.instead_of)
    for plugin, wishes in inside.items():
        _set_inside(place, arguments, framework, plugin, table, wishes, edits, notes, added)
    _consistent(arguments, added, wanted)
    if added:
        keep(edits, *arguments.add(None, added))


def _refuse_excluded(
    arguments: Arguments, name: str, excludes: tuple[str, ...], here: list[Candidate], framework: str
) -> None:
    for other in excludes:
        there = arguments.find(other)
        if there is not None and literal(there.value) not in (None, False):
            raise NoEdit("display", f"{other} is set, which excludes {name}", here, framework=framework)


def refuse_chosen(name: str, now: object, wished: object, instead_of: tuple[object, ...]) -> None:
    """Raises NoEdit where a value that is there was chosen for another reason than the one it would give way to."""
    if instead_of and now is not None and now not in (wished, *instead_of):
        raise NoEdit("display", f"{name}={now} is set on purpose")


def _change(
    place: Place, given: Given, wish: str, text: str, edits: Edits, instead_of: tuple[object, ...] = ()
) -> None:
    """Sets an argument that is there to what is wished, where it is not that, or better."""
    now, wished = literal(given.value), _literal(text)
    if isinstance(wished, dict):
        if not isinstance(given.value, cst.Dict) or not isinstance(now, dict):
            where = [candidate(given.script, given.value)]
            raise NoEdit("display", f"{given.name} is set somewhere else", where)
        missing = {k: written(v) for k, v in wished.items() if k not in now}
        if {k: v for k, v in wished.items() if k in now and now[k] != v}:
            where = [candidate(given.script, given.value)]
            raise NoEdit("display", f"{given.name} says otherwise on purpose", where)
        if missing:
            keep(edits, given.script, add_entries(given.script, given.value, missing))
    elif now is not ...:
        refuse_chosen(given.name, now, wished, instead_of)
        if not _as_wished(wish, now, wished):
            keep(edits, given.script, [set_value(given, text)])
    else:
        origin = where_set(given.script, given.value, place.program)
        if origin is None:
            where = [candidate(given.script, given.value)]
            raise NoEdit("display", f"{given.script.code(given.value)} is set somewhere else", where)
        refuse_chosen(given.name, literal(origin.value), wished, instead_of)
        if wish == "batch_size" and (user := divided(origin, place.program)) is not None:
            raise NoEdit(
                "display", f"other values are computed from {user[0].code(user[1])}", [candidate(*user)]
            )
        if not _as_wished(wish, literal(origin.value), wished):
            keep(edits, origin.script, set_origin(origin, text, "default"))


def _literal(text: str) -> object:
    return literal(cst.parse_expression(text))


def _as_wished(wish: str, now: object, wished: object) -> bool:
    if wish in _AT_LEAST and isinstance(now, int) and isinstance(wished, int):
        return now >= wished
    if wish == "compile":
        return now not in (None, False, "no", "NO")
    return now is not None if wish in _ANY else now == wished


def _consistent(arguments: Arguments, added: dict[str, str], wanted: Mapping[str, str]) -> None:
    """What is the default already, or raises without workers, is left out."""
    if wanted.get("pin_memory") == "True":
        added.pop("dataloader_pin_memory", None)
    workers = arguments.find("dataloader_num_workers")
    if workers is None and "dataloader_num_workers" not in added:
        added.pop("dataloader_prefetch_factor", None)
        added.pop("dataloader_persistent_workers", None)


# ---------------------------------------------------------------------- an object that is passed


def _set_inside(
    place: Place,
    arguments: Arguments,
    framework: str,
    plugin: Plugin,
    table: Mapping[str, Setting],
    wishes: Mapping[str, str],
    edits: Edits,
    notes: list[str],
    added: dict[str, str],
) -> None:
    """Arguments of the object that the call is passed: of the one that is there, else of a new one."""
    script, here = arguments.script, [candidate(arguments.script, arguments.call)]
    own = {wish: replace(table[wish], plugin=None) for wish in wishes}
    given = arguments.find(plugin.name)
    if given is not None and literal(given.value) is not None:
        made = place.program.of(given.script, given.value)
        if len(made) != 1 or not isinstance(made[0][1], cst.Call):
            why = f"{plugin.name} is made somewhere else"
            raise refusal(given.script, given.value, why, framework=framework)
        _set(place, (made[0][0], made[0][1]), framework, own, wishes, edits, notes)
        return
    _refuse_excluded(arguments, plugin.name, plugin.excludes, here, framework)
    texts = {own[w].name: own[w].value.format(v) for w, v in wishes.items()}
    simple = arguments.find(plugin.replaces) if plugin.replaces else None
    if simple is not None and literal(simple.value) not in (None, "no", ..., "NO"):
        texts = texts | {own["compile"].name: script.code(simple.value)} if "compile" in own else texts
        notes.append(f"{plugin.replaces} and {plugin.name} exclude each other")
    name, imports = name_for(script, plugin.made, arguments.call)
    text = f"{name}({', '.join(f'{k}={v}' for k, v in texts.items())})"
    keep(edits, script, list(imports))
    if simple is None:
        added[plugin.name] = text
        return
    arg = next((a for a in arguments.call.args if a.keyword and a.keyword.value == plugin.replaces), None)
    if arg is None or literal(simple.value) is ...:
        raise NoEdit("display", f"{plugin.replaces} is set somewhere else", here, framework=framework)
    assert arg.keyword is not None
    start, end = script.span(arg.keyword)[0], script.outer_span(arg.value)[1]
    keep(edits, script, [Edit(start, end, f"{plugin.name}={text}", f"arg:{start}:{plugin.name}", text)])
