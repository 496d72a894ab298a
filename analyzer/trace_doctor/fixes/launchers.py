"""Options of the command that starts a script: in its launch script or configuration file, else for people to type."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence

import libcst as cst

from trace_doctor.fixes.codemods import Place
from trace_doctor.fixes.edits import Candidate, Change, Edit, NoEdit
from trace_doctor.loaders.script import Script, TextFile

_SHELL = (".sh", ".bash", ".slurm", ".sbatch")
_CONFIG = (".yaml", ".yml", ".json")
_TRAINER_KEY = "per_device_train_batch_size"
"""tells a file of the Trainer's arguments from any other"""


def pass_options(
    place: Place, parsed: tuple[Script, cst.Call], options: Mapping[str, str], notes: Sequence[str] = ()
) -> Change:
    """Passes options to a script whose arguments come from a parser.

    Edits the one launch script, or the one configuration file of the Trainer's arguments, that the source folder holds.
    Raises NoEdit with the options to type where there is none or more than one.
    """
    script = parsed[0].name
    started = [(file, span) for file in place.program.files(*_SHELL) for span in _commands(file, script)]
    configs = [file for file in place.program.files(*_CONFIG) if _key(file, _TRAINER_KEY) is not None]
    if len(started) == 1:
        file, span = started[0]
        edits = _shell_edits(file, span, script, options)
    elif len(configs) == 1 and not started:
        file = configs[0]
        edits = [e for name, value in options.items() if (e := _config_edit(file, name, value)) is not None]
    else:
        shown = [
            Candidate(f.name, f.line_of(at[0]), f.line_text(f.line_of(at[0])).strip()) for f, at in started
        ]
        text = " ".join(f"--{name} {value}" for name, value in options.items())
        raise NoEdit(
            "display",
            "the arguments come from the command line: add these options to it",
            shown,
            command="\n".join([f"python {script} ... {text}", *(f"# {note}" for note in notes)]),
            framework="transformers",
        )
    if not edits:
        raise NoEdit("already", f"{file.name} passes these options already", framework="transformers")
    line = file.line_of(edits[0].start)
    return Change(file, tuple(edits), line, "unsafe", tuple(notes), "transformers")


# ---------------------------------------------------------------------- shell scripts


def _commands(file: TextFile, script: str) -> Iterator[tuple[int, int]]:
    """Ranges of the commands that start a script: the line with its name and those that continue it."""
    name = re.escape(script.rsplit("/", 1)[-1])
    for match in re.finditer(rf"(?m)^(?![ \t]*#)[^\n#]*?(?<![\w-]){name}(?![\w.])", file.text):
        end = match.end()
        while (stop := file.text.find("\n", end)) >= 0 and file.text[end:stop].rstrip("\r").endswith("\\"):
            end = stop + 1
        yield match.end(), stop if stop >= 0 else len(file.text)


def _shell_edits(
    file: TextFile, span: tuple[int, int], script: str, options: Mapping[str, str]
) -> list[Edit]:
    start, end = span
    command = file.text[start:end]
    edits, new = [], []
    for name, value in options.items():
        there = re.search(rf"(?<!\S)--{name}(?:[ =]+|\s*\\\r?\n\s*)(?P<value>[^\s\\]+)", command)
        if there is None:
            new.append(f"--{name} {value}")
        elif there["value"] != value and not _more(there["value"], value):
            at = start + there.start("value")
            edits.append(Edit(at, start + there.end("value"), value, f"option:{start}:{name}", value))
    if new:
        rest = command.split("\n")[0].rstrip("\r")
        if rest.strip() == "\\":  # one option a line: new lines of the same form right below
            below = file.line_text(file.line_of(start) + 1)
            indent = below[: len(below) - len(below.lstrip())]
            at = start + len(command.split("\n")[0]) + 1
            text = "".join(f"{indent}{option} \\\n" for option in new)
        else:
            at, text = start, "".join(f" {option}" for option in new)
        edits.append(Edit(at, at, text, f"options:{start}", text))
    return edits


def _more(now: str, wished: str) -> bool:
    return now.isdigit() and wished.isdigit() and int(now) >= int(wished)


# ---------------------------------------------------------------------- top-level keys of YAML and JSON


def _key(file: TextFile, name: str) -> re.Match[str] | None:
    """A top-level key with its value."""
    if file.name.endswith(".json"):
        try:
            if not isinstance(found := json.loads(file.text), dict) or name not in found:
                return None
        except ValueError:
            return None
        return re.search(rf'"{name}"\s*:\s*(?P<value>"[^"\n]*"|[^,\s}}]+)', file.text)
    return re.search(rf"(?m)^{name}[ \t]*:[ \t]*(?P<value>[^\s#]+)", file.text)


def _config_edit(file: TextFile, name: str, value: str) -> Edit | None:
    """Sets a top-level key, or adds it below the key that every file of the Trainer's arguments has."""
    is_json = file.name.endswith(".json")
    text = value.lower() if value in ("True", "False") else value
    if is_json and not re.fullmatch(r"-?\d+(?:\.\d+)?|true|false", text):
        text = json.dumps(text)
    there = _key(file, name)
    if there is not None:
        if there["value"] == text or _more(there["value"], text):
            return None
        return Edit(there.start("value"), there.end("value"), text, f"key:{name}", text)
    beside = _key(file, _TRAINER_KEY)
    assert beside is not None
    at = file.line_starts[file.line_of(beside.start()) - 1]
    indent = file.text[at : beside.start()]
    if indent.strip():
        return None  # an object on one line
    line = f'{indent}"{name}": {text},\n' if is_json else f"{indent}{name}: {text}\n"
    return Edit(at, at, line, f"key:{name}", text)
