"""The commands that start a script, and the files that they name: where an option, a variable or a configuration is set
outside of the code."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trace_doctor.fixes.frameworks.documents import Document
from trace_doctor.fixes.frameworks.trainers import Setting
from trace_doctor.program.edits import Candidate, Change, Edit, NoEdit, change_of
from trace_doctor.program.place import Place
from trace_doctor.program.text_file import TextFile

SHELL = (".sh", ".bash", ".slurm", ".sbatch", "Makefile", "Dockerfile")
CONFIG = (".yaml", ".yml", ".json")
_TRAINER_KEY = "per_device_train_batch_size"
"""tells a file of the Trainer's arguments from any other"""


@dataclass(frozen=True)
class Command:
    """A command of a launch script, with the lines that continue it: characters [start, end) of the file. The script's
    own arguments begin at `arguments`."""

    file: TextFile
    start: int
    arguments: int
    end: int

    @property
    def text(self) -> str:
        """Launcher, script and arguments, line ends with their backslashes included."""
        return self.file.text[self.start : self.end]

    def option(self, *names: str) -> str | None:
        """The value of an option, of the launcher or of the script."""
        for name in names:
            match = re.search(_option(name), self.text)
            if match is not None:
                return match["value"].strip("\"'")
        return None

    def value(self, name: str) -> object:
        """The value of an option; True for a flag without one, None where it is not passed."""
        flag = re.search(rf"(?<!\S)--{name}(?![\w-])", self.text) is not None
        return self.option(name) or (flag or None)

    @property
    def candidate(self) -> Candidate:
        """The line on which the arguments of the script begin."""
        return candidate_at(self.file, self.arguments)


def candidate_at(file: TextFile, offset: int) -> Candidate:
    """The line that a place of a file is on."""
    return Candidate.of(file, file.line_of(offset))


def commands(place: Place, script: str) -> list[Command]:
    """The commands that start a script of this name, in the launch scripts of the source folder."""
    return [c for file in place.program.files(*SHELL) for c in _commands(file, script)]


def starts(place: Place) -> list[Command]:
    """The commands that start the program: any of its scripts that can be started."""
    names = sorted({s.name for s in [*place.program.scripts_with("__main__"), *place.scripts]})
    return [c for name in names for c in commands(place, name)]


def _commands(file: TextFile, script: str) -> Iterator[Command]:
    name = re.escape(script.rsplit("/", 1)[-1])
    for match in re.finditer(rf"(?m)^(?![ \t]*#)[^\n#]*?(?<![\w-]){name}(?![\w.])", file.text):
        start, end = match.start(), match.end()
        while start and file.text[:start].rstrip("\r\n").endswith("\\"):
            start = file.text.rfind("\n", 0, start - 1) + 1
        while (stop := file.text.find("\n", end)) >= 0 and file.text[end:stop].rstrip("\r").endswith("\\"):
            end = stop + 1
        yield Command(file, start, match.end(), stop if stop >= 0 else len(file.text))


def say_what_is_not_checked(place: Place, names: Sequence[str], edit: Callable[[], Change]) -> Change:
    """The change of `edit`, or its refusal as done already, with the files of other kinds that hold one of these names, or
    that could not be read: any of them may set it as well."""
    elsewhere = place.program.not_checked(names)
    try:
        change = edit()
    except NoEdit as refused:
        if elsewhere and refused.kind == "already":
            refused.why += f"; {elsewhere}"
        raise
    return replace(change, elsewhere=elsewhere)


def config_files(place: Place, path: str) -> list[TextFile]:
    """Configuration files of the source folder that a path of a command or a script can mean."""
    parts = [part for part in path.replace("\\", "/").split("/") if part not in (".", "..", "")]
    parts = parts[max((i + 1 for i, p in enumerate(parts) if "$" in p or "{" in p), default=0) :]
    if not parts:
        return []
    files = [f for f in place.program.files(*CONFIG) if f.name.split("/")[-1] == parts[-1]]
    exact = [f for f in files if f.name.split("/") == parts]
    return exact or [f for f in files if f.name.split("/")[-len(parts) :] == parts]


# ---------------------------------------------------------------------- options of a parser


def pass_options(
    place: Place,
    script: str,
    options: Mapping[str, str],
    notes: Sequence[str],
    settings: Mapping[str, Setting],
) -> Change:
    """Passes options to a script of this name, whose arguments come from a parser.

    Edits the one launch script, or the one configuration file of the Trainer's arguments, that the source folder holds.
    Raises NoEdit with the options to type where there is none or more than one.
    """
    launches = commands(place, script)
    plain = [simple for command in launches if (simple := simple_command(command, script)) is not None]
    configs = [d for d in documents(place.program.files(*CONFIG)) if d.find(_TRAINER_KEY) is not None]
    if len(launches) == len(plain) == 1:
        file = plain[0].file
        _refuse_contradictions(plain[0].value, options, settings)
        edits = _shell_edits(plain[0], options)
    elif len(configs) == 1 and not launches:
        file = configs[0].file
        _refuse_contradictions(configs[0].value, options, settings)
        edits = configs[0].merge(_unlike(configs[0], options))
    else:
        text = " ".join(f"--{name} {value}" for name, value in options.items())
        raise NoEdit(
            "display",
            "the arguments come from the command line: add these options to it",
            [command.candidate for command in launches],
            command="\n".join([f"python {script} ... {text}", *(f"# {note}" for note in notes)]),
            framework="transformers",
        )
    return change_of(file, edits, "passes these options", "transformers", notes)


def simple_command(command: Command, script: str) -> Command | None:
    """The part of a line that is the one command with the script: without what stands before or behind an operator of the
    shell. None where the script is not plainly a word of a command: in quotes with others, in a list, in what is printed."""
    name, words, rest = script.rsplit("/", 1)[-1], list[re.Match[str]](), command.start
    behind = None
    while rest < command.end:
        if not (match := _WORD.match(command.file.text, rest, command.end)):
            return None  # a quote that is open, or something that is not followed
        rest = match.end()
        if match["word"] is None and match["operator"] is None:
            continue
        if match["word"] is not None:
            words.append(match)
        elif any(_is_named(word["word"], name) for word in words):
            behind = match
            break
        else:
            words = []
    at = next((n for n, word in enumerate(words) if _is_named(word["word"], name)), None)
    if at is None or words[0]["word"] in _PRINTS or any(w["word"].startswith("#") for w in words):
        return None
    end = words[-1].end()
    if behind is not None and words[-1]["word"].isdigit() and end == behind.start():
        end = words[-2].end()  # the number of a stream that is led elsewhere
    return Command(command.file, words[0].start(), words[at].end(), end)


_WORD = re.compile(
    r"""[ \t]+|\\\r?\n|(?P<operator>[;|&<>\r\n]+)|(?P<word>(?:\$\(\w+\)|"(?:[^"\\]|\\.)*"|'[^']*'|\\[^\r\n]|[^\s;|&<>()`"'\\])+)""",
    re.DOTALL,
)
"""of a shell; of make, `$(NAME)` is a variable"""
_MANY = re.compile(
    r"""(?<![^\s"'])(?:\$\{\w+\[[@*]\][^}]*\}|\$[@*]|\$\{[@*][^}]*\}|(?<!")\$(?:\w+|\{\w+\}|\(\w+\))(?=\s|$))"""
)
"""words that the shell, or make, may turn into several: a list, all arguments, a variable without quotes"""
_OPTION = re.compile(r"(?<!\S)--?[A-Za-z][\w-]*\s+$")
"""before a word that is its value"""
_PRINTS = frozenset(("echo", "printf", "alias", "eval"))


def _is_a_value(text: str, variable: re.Match[str]) -> bool:
    """Whether a variable, which is no list, stands where the value of an option does."""
    single = not set("[@*") & set(variable[0])
    return single and _OPTION.search(text[: variable.start()]) is not None


def _is_named(word: str, name: str) -> bool:
    return word.strip("\"'").rsplit("/", 1)[-1] == name


def _refuse_contradictions(
    value_of: Callable[[str], object], options: Mapping[str, str], settings: Mapping[str, Setting]
) -> None:
    """Raises NoEdit where what is passed already excludes an option, or sets it for another reason."""
    for name, setting in settings.items():
        for other in setting.excludes if name in options else ():
            if str(value_of(other)).lower() not in ("none", "false", "0"):
                raise NoEdit("display", f"{other} is set, which excludes {name}", framework="transformers")
        now = value_of(name)
        if setting.instead_of and now is not None and now not in (options.get(name), *setting.instead_of):
            raise NoEdit("display", f"{name}={now} is set on purpose", framework="transformers")


def documents(files: Iterable[TextFile]) -> Iterator[Document]:
    """Those files that are read as JSON or YAML."""
    for file in files:
        try:
            yield Document(file)
        except NoEdit:
            continue


def _unlike(document: Document, options: Mapping[str, str]) -> dict[str, Any]:
    """The options whose values are not there, or smaller, as values of a configuration file."""
    values = {name: _value(text) for name, text in options.items()}
    return {n: v for n, v in values.items() if not _suffices(str(document.value(n)), str(v))}


def _value(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _option(name: str) -> str:
    return rf"(?<!\S)--{name}(?:[ =]+|\s*\\\r?\n\s*)(?P<value>(?!--)[^\s\\]+)"


def _shell_edits(command: Command, options: Mapping[str, str]) -> list[Edit]:
    file, start, text = command.file, command.arguments, command.file.text[command.arguments : command.end]
    edits, new = [], []
    if many := next((m for m in _MANY.finditer(text) if not _is_a_value(text, m)), None):
        where = [candidate_at(file, start + many.start())]
        why = f"{many[0]} may hold the options as well"
        raise NoEdit("display", why, where, framework="transformers")
    for name, value in options.items():
        there = re.search(_option(name), text)
        if len(re.findall(rf"(?<!\S)--{name}(?![\w-])", text)) > 1:
            why = f"--{name} is passed more than once"
            raise NoEdit("display", why, [command.candidate], framework="transformers")
        if there is None and command.value(name) and value == "True":
            continue
        if there is not None and "$" in there["value"]:
            where = [candidate_at(file, start + there.start("value"))]
            raise NoEdit("display", f"--{name} comes from {there['value']}", where, framework="transformers")
        if there is None:
            new.append(f"--{name} {value}")
        elif not _suffices(there["value"], value):
            at = start + there.start("value")
            edits.append(Edit(at, start + there.end("value"), value, f"option:{start}:{name}", value))
    at, addition, rest = start, "".join(f" {option}" for option in new), text.split("\n")[0]
    if rest.strip() == "\\":  # one option a line: new lines of the same form right below
        below = file.line_text(file.line_of(start) + 1)
        indent = below[: len(below) - len(below.lstrip())]
        at, addition = start + len(rest) + 1, "".join(f"{indent}{option} \\\n" for option in new)
    return [*edits, Edit(at, at, addition, f"options:{start}", addition)] if new else edits


def _suffices(now: str, goal: str) -> bool:
    """Whether it is the goal, or a larger number."""
    numbers = all(re.fullmatch("[0-9]{1,9}", text) for text in (now, goal))
    return int(now) >= int(goal) if numbers else now == goal
