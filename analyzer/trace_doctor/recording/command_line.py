"""A command line as it may be kept and shown: without secrets.

What is shown is what is known to be harmless. Everything else is `***`.
"""

from __future__ import annotations

import base64
import os
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Literal
from urllib.parse import quote, quote_plus

from trace_doctor.recording.harmless import (
    HARMLESS_WORDS,
    MASK,
    PROGRAMS,
    is_known,
    is_number,
    is_word,
    words,
)
from trace_doctor.recording.secret_names import is_known_option, kind, showable

_Behind = Literal[
    "nothing",
    "option",
    "unknown option",
    "letter",
    "user or port",
    "module",
    "number",
    "secret",
    "rest of a secret",
]
"""what the word before allows a word to be"""
_OPTION = re.compile(r"(?P<dashes>--?)(?P<name>[A-Za-z][^=:]*)(?:(?P<sign>[=:])(?P<value>.*))?", re.DOTALL)
_ASSIGNED = re.compile(r"(?P<plus>\+{0,2})(?P<name>[A-Za-z_][\w./-]*)(?P<sign>[=:])(?P<value>.*)", re.DOTALL)
_ADDRESS = re.compile(r"([a-z][a-z0-9+]{1,9})://.*", re.DOTALL)
_SCHEMES = words("az env file ftp gs hdfs hf http https mysql oci postgresql redis s3 ssh tcp ws wss")
_AT = re.compile(r"([A-Za-z0-9.-]+):(\d{1,5})")
_NETWORK = words("addr address endpoint host hosts listen master port rdzv server")
"""words in names of options whose value may be a machine and a port"""
_HERE = re.compile(r"(tcp://)?(localhost|127\.0\.0\.1|0\.0\.0\.0)(:\d{1,5})?")
_FILE = re.compile(
    r"[^/]+\.(bin|cfg|ckpt|conf|csv|gz|h5|ini|ipynb|jsonl?|log|md|npy|npz|onnx|parquet|pkl|pth?|pt|py|safetensors|sh|tar"
    r"|toml|tsv|txt|ya?ml|zip)"
)
_RUNS_MODULES = re.compile(r"(python|pypy)[\d.]*|torchrun|accelerate|deepspeed|uv")
_LIST = re.compile(r"\[(.*)\]|\((.*)\)|(.*)", re.DOTALL)
_MOST_ITEMS = 16
_MOST_DIGITS = 12
"""of a list of numbers of four digits and more"""
_USER_OR_PORT = frozenset("pPuUk")
"""letters of options that are a password, a user or a key to some programs, and a port or nothing at all to others"""
_LONGEST_WORD = 1024
"""characters: what is longer is no path and no setting"""
_PORT = re.compile(r"\d{1,5}")
_LONGEST_COMPONENT = 64
"""characters of a part of a path that exists"""
_LONGEST_FILE = 32
"""characters of a part of a path that does not"""
_LONGEST_PATH = 96
_PIECES = re.compile(r"[\s'\"=:,;&?/@{}\[\]-]+")
_PASSWORD_OF_URL = re.compile(r"://[^/@\s:]*:([^/@\s]+)@")
_ESCAPED = (
    r"\\+u[dD][89abAB][0-9a-fA-F]{2}\\+u[dD][c-fC-F][0-9a-fA-F]{2}|\\+(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8})"
    r"|\\+[^\\]|\\+"
)
"""one character, however often it was escaped: each time doubles the backslashes, so that none of them counts"""
_CONTROL = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_LEAST_TO_FIND = 6
"""characters of a hidden text that is looked for elsewhere"""
_PART = 8
"""characters in a row of a longer hidden text, or of one of its encodings, that are hidden as well"""


def masked(command: Sequence[str], cwd: str | os.PathLike[str] | None = None) -> str:
    """The command as a shell reads it, with `***` for all that may be a secret, and `~` for the home folder.

    Shown are the program and the script, names of options, numbers, known words, paths, and what has the shape of a
    name behind an option whose name is no secret's. `cwd`: what relative paths begin at (default: the current folder).
    """
    return " ".join(_quoted(word) for word in _Reader(cwd).read(command))


def shown(word: str, cwd: str | os.PathLike[str] | None = None) -> str:
    """One program or file of a command for a message: as it is where it is harmless."""
    return _quoted(_Reader(cwd).program(word))


def without_secrets(text: str, command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Text of a program with `***` for what the command line hides, and for the values of variables with a secret's name:
    whole, in parts of _PART characters and more, and in base64, hex or as in a URL."""
    pairs = _redactions(command, environment)
    text = _without_parts(text, [(_plain(word), _plain(masked_word)) for word, masked_word in pairs])
    pieces = {
        piece
        for word, masked_word in pairs
        for piece in (word, *_PIECES.split(word))
        if piece not in masked_word
    }
    for piece in sorted(pieces, key=len, reverse=True):
        if len(plain := _plain(piece)) >= _LEAST_TO_FIND and not is_known(piece):
            text = _replaced(text, plain)
    return text


def _spelled(text: str) -> tuple[list[str], str]:
    """How each character is written, and which it is: Python and JSON write some by escapes, JSON also those of Python."""
    spellings = re.findall(f"(?s:{_ESCAPED}|.)", text)
    return spellings, "".join(map(_character, spellings))


def _character(spelling: str) -> str:
    name = spelling.lstrip("\\")
    if len(name) < 2:
        return (_CONTROL.get(name, name) if name != spelling else name) or "\\"
    if len(name) > len("U0010ffff"):  # two halves of one
        return (bytes.fromhex(name[1:5]) + bytes.fromhex(name[-4:])).decode("utf-16-be")
    number = int(name[1:], 16)
    return chr(number) if number <= sys.maxunicode else " "


def _plain(text: str) -> str:
    return re.sub(_ESCAPED, lambda escaped: _character(escaped[0]), text).rstrip("\\")


def _replaced(text: str, piece: str) -> str:
    if "\\" not in text:
        return text.replace(piece, MASK)
    spellings, plain = _spelled(text)
    parts, done = [], 0
    while (at := plain.find(piece, done)) >= 0:
        parts += [*spellings[done:at], MASK]
        done = at + len(piece)
    return "".join([*parts, *spellings[done:]])


def lines_without_secrets(text: str, command: Sequence[str], environment: Mapping[str, str]) -> str:
    """The same of each line of a long log; what is not encoded alone is looked for."""
    parts = {
        re.escape(word[at : at + _LEAST_TO_FIND])
        for word in (_plain(word) for word, _ in _redactions(command, environment))
        for at in range(len(word) - _LEAST_TO_FIND + 1)
    }
    if not parts:
        return text
    has_part = re.compile("|".join(sorted(parts))).search
    return "".join(
        without_secrets(line, command, environment) if has_part(_plain(line)) else line
        for line in text.splitlines(keepends=True)
    )


def _redactions(command: Sequence[str], environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """Each word of which something is hidden, and what of it is shown."""
    pairs = [
        (word, masked_word)
        for word, masked_word in zip(command, _Reader(None).read(command), strict=True)
        if MASK in masked_word
    ]
    secrets = [value for name, value in environment.items() if kind(name) == "secret"]
    secrets += [password for value in environment.values() for password in _PASSWORD_OF_URL.findall(value)]
    return pairs + [(value, MASK) for value in secrets]


def _without_parts(text: str, pairs: Iterable[tuple[str, str]]) -> str:
    """Text without parts of _PART characters of what is hidden, as it is or encoded; single known words stay."""
    spellings, text = _spelled(text)
    there = {text[at : at + _PART] for at in range(len(text) - _PART + 1)}
    parts: set[str] = set()
    for word, masked_word in pairs:
        for form in _forms(_behind_mask(word, masked_word)):
            pieces = (form[at : at + _PART] for at in range(len(form) - _PART + 1))
            parts.update(part for part in pieces if part in there and part not in masked_word)
    marks = bytearray(len(text))
    for at in range(len(text)):
        if text[at : at + _PART] in parts:
            marks[at : at + _PART] = b"\1" * _PART
    runs = (
        (mark, "".join(c for _, c in run))
        for mark, run in groupby(zip(marks, spellings, strict=True), itemgetter(0))
    )
    return "".join(_masked_run(run) if mark else run for mark, run in runs)


def _masked_run(run: str) -> str:
    inner = run.strip()
    return run if not inner or (is_known(inner) and not re.search(r"\d", inner)) else run.replace(inner, MASK)


def _behind_mask(word: str, masked_word: str) -> str:
    """What `***` stands for in a word of which one part is hidden."""
    before, _, behind = masked_word.partition(MASK)
    whole = MASK in behind or not (word.startswith(before) and word.endswith(behind))
    return word if whole else word[len(before) : len(word) - len(behind)]


def _forms(value: str) -> Iterator[str]:
    """A value of _PART characters and more, and its encodings that programs print, of it and of its pieces."""
    for piece in {value, *_PIECES.split(value)}:
        if len(piece) >= _PART:
            raw = piece.encode("utf-8", "surrogateescape")
            yield piece
            for ahead, mixed in ((0, 0), (1, 2), (2, 3)):  # bytes before it, as in base64 of `user:password`
                text = base64.b64encode(bytes(ahead) + raw).decode()[mixed:]
                yield from (text, text.replace("+", "-").replace("/", "_"))
            yield raw.hex()
            yield raw.hex().upper()
            yield "".join(f"%{byte:02x}" for byte in raw)
            yield "".join(f"%{byte:02X}" for byte in raw)
            yield quote(raw, safe="")
            yield quote(raw)
            yield quote_plus(raw)


class _Reader:
    """Reads the words of a command from the first to the last."""

    def __init__(self, cwd: str | os.PathLike[str] | None) -> None:
        self._cwd = os.fspath(cwd) if cwd is not None else os.curdir
        self._home = str(Path.home())
        self._behind: _Behind = "nothing"
        self._name = ""
        self._python = False
        """whether `-m` names a module: Python or a launcher was named, and no script yet"""

    def read(self, command: Sequence[str]) -> Iterator[str]:
        """The words with secrets masked and paths short, one for one; the first that is no assignment is the program."""
        program_seen = False
        for word in command:
            if not program_seen and not _ASSIGNED.fullmatch(word):
                program_seen = True
                self._note_program(word)
                yield self.program(word)
            else:
                yield self._word(word)

    def program(self, word: str) -> str:
        """A program or a script: a path, or a name."""
        if word in PROGRAMS or ("/" not in word and shutil.which(word) is not None):
            return word if word in PROGRAMS or is_word(word) else MASK
        if (path := self._path(word)) is not None:
            return path
        if assigned := _ASSIGNED.fullmatch(word):  # taken for a program where no shell reads it
            name, sign = assigned.group("name", "sign")
            return f"{name}{sign}{MASK}" if sign == "=" and showable(name) else MASK
        return word if is_word(word) else MASK

    def _word(self, word: str) -> str:
        behind, self._behind = self._behind, "nothing"
        if len(word) > _LONGEST_WORD:
            return MASK
        if behind in ("secret", "rest of a secret") and not is_known_option(word):
            self._behind = "rest of a secret"
            masked_value = self._path(word, must_exist=True) if behind == "rest of a secret" else None
            return masked_value if masked_value is not None else MASK
        if word in ("-", "--") or not word:
            return word
        if word.startswith("-") and not is_number(word):
            return self._option(word)
        masked_value = self._value(word, behind)
        if masked_value is None and (assigned := _ASSIGNED.fullmatch(word)):
            plus, name, sign, value = assigned.group("plus", "name", "sign", "value")
            if sign == "=" or (is_known(name) and kind(name) != "secret"):
                return f"{plus}{self._assigned(name, sign, value)}"
        self._note_program(word)
        return MASK if masked_value is None else masked_value

    def _note_program(self, word: str) -> None:
        base = word.rpartition("/")[2]
        if _RUNS_MODULES.fullmatch(base):
            self._python = True
        elif word.endswith(".py"):
            self._python = False

    # -- options and assignments

    def _option(self, word: str) -> str:
        match = _OPTION.fullmatch(word)
        if match is None:
            self._behind = "nothing" if "=" in word else "secret"
            return MASK
        dashes, name, sign, value = match.group("dashes", "name", "sign", "value")
        if dashes == "-" and len(name) > 1 and not self._is_single_dashed(name, sign):
            return self._attached(name, word)
        if sign:
            return f"{dashes}{self._assigned(name, sign, value)}"
        if not showable(name):
            self._behind = "secret"
            return MASK
        self._name = name
        self._behind = self._allows(name)
        return word

    def _allows(self, name: str) -> _Behind:
        if (allowed := kind(name)) != "plain":
            return allowed
        if len(name) > 2:
            return "option" if _is_known_name(name) else "unknown option"
        if name == "m" and self._python:
            return "module"
        return "user or port" if name in _USER_OR_PORT else "letter"

    def _is_single_dashed(self, name: str, sign: str | None) -> bool:
        """`-lr`, `-vvv`, `-batch_size` and `-Dname=value` are options; `-pPASSWORD` is not."""
        if sign:
            return is_known(name) or (sign == "=" and name.startswith("D") and showable(name))
        return len(set(name)) == 1 or is_known(name) or (len(name) == 2 and name.isalpha())

    def _attached(self, name: str, word: str) -> str:
        letter, rest = name[0], word[2:]
        if letter not in _USER_OR_PORT and is_number(rest):
            return word
        return f"-{letter}{MASK}"

    def _assigned(self, name: str, sign: str, value: str) -> str:
        if not showable(name):
            return MASK
        self._name = name
        allowed = self._allows(name)
        if sign == ":" and allowed == "option":
            allowed = "letter"  # as likely a user and a password
        masked_value = self._value(value, allowed) if value else ""
        return f"{name}{sign}{MASK if masked_value is None else masked_value}"

    # -- values: each gives what may be shown, or None

    def _value(self, text: str, behind: _Behind) -> str | None:
        if behind == "secret":
            return None
        if behind == "user or port":
            return text if _PORT.fullmatch(text) else self._path(text, free=False)
        if is_number(text):
            digits = sum(map(str.isdigit, text)) if behind == "unknown option" else 0
            return text if digits <= 5 and (behind != "number" or len(text) < 8) else None
        if is_known(text):
            return text
        if (masked_path := self._path(text, must_exist=True)) is not None:
            return masked_path
        if behind in ("number", "unknown option"):
            return self._items(text, behind) if behind == "unknown option" else None
        if behind == "module":
            return text if is_word(text, longest=48) else None
        if address := _ADDRESS.fullmatch(text):
            return self._address(text, address[1])
        if (masked_path := self._path(text, free=behind == "option")) is not None:
            return masked_path
        if behind == "option" and (self._is_machine(text) or is_word(text)):
            return text
        return self._items(text, behind)

    def _address(self, text: str, scheme: str) -> str | None:
        if _HERE.fullmatch(text) or text == "env://":
            return text
        return f"{scheme}://{MASK}" if scheme in _SCHEMES else None

    def _is_machine(self, text: str) -> bool:
        if _HERE.fullmatch(text):
            return True
        match = _AT.fullmatch(text)
        of_name = set(re.split("[^a-z]+", self._name.lower()))
        return match is not None and bool(of_name & _NETWORK) and is_word(match[1])

    def _items(self, text: str, behind: _Behind) -> str | None:
        """Lists, and pairs with a name in front: all of it, or nothing."""
        whole = _LIST.fullmatch(text)
        inner = next((group for group in whole.groups() if group is not None), "") if whole else ""
        items = re.split(", ?", inner)
        groups = [len(group) for group in re.findall(r"\d+", inner)]
        if groups and min(groups) >= 4 and sum(groups) >= _MOST_DIGITS:
            return None  # the number of a card, or codes, whatever stands between
        if len(items) > _MOST_ITEMS or sum(map(len, items)) > 6 * _LONGEST_COMPONENT:
            return None
        unknown = [
            item for item in items if not (is_number(item) or is_known(item) or self._is_pair(item, behind))
        ]
        if len(items) == 1 and unknown:
            return None
        short = behind == "option" and len("".join(unknown)) <= 24 and is_word("-".join(unknown))
        return text if not unknown or short else None

    def _is_pair(self, item: str, behind: _Behind) -> bool:
        name, sign, value = item.partition("=" if "=" in item else ":")
        if not sign or kind(name) != "plain" or not showable(name):
            return False
        harmless = len(value) <= 6 and _is_known_name(name) if is_number(value) else is_known(value)
        if sign == ":":
            return is_known(name) and harmless
        return harmless or (behind == "option" and _is_known_name(name) and is_word(value))

    # -- paths

    def _path(self, text: str, *, must_exist: bool = False, free: bool = True) -> str | None:
        """The path with `~` for the home folder. Of one that exists each part is looked at by itself; one that does not
        is shown as a whole or not at all, and without `free` only with the looks of a path."""
        prefix, text = ("@", text[1:]) if text.startswith("@") else ("", text)
        there = self._exists(text)
        if not there and (must_exist or not self._looks_like_a_path(text, free)):
            return None
        parts = self._at_home(text).split("/")
        if parts[:2] in (["", "home"], ["", "Users"]) and len(parts) > 2:
            parts[2] = MASK  # whose it is
        if there:
            return prefix + "/".join(p if _is_component(p) or p == MASK else MASK for p in parts)
        components = [p for p in parts if p not in ("", ".", "..", "~", MASK)]
        whole = is_word("-".join(components), longest=_LONGEST_PATH)
        if not whole or not all(is_word(p, longest=_LONGEST_FILE) for p in components):
            return None
        return prefix + "/".join(parts)

    def _exists(self, text: str) -> bool:
        try:
            return os.path.lexists(os.path.join(self._cwd, text)) if text else False
        except (OSError, ValueError):
            return False

    def _looks_like_a_path(self, text: str, free: bool) -> bool:
        if _FILE.fullmatch(text.rpartition("/")[2]) or text.startswith(("./", "../", "/", "~/")):
            return True
        return "/" in text and (free or text.partition("/")[0] in HARMLESS_WORDS)

    def _at_home(self, text: str) -> str:
        if len(self._home) > 1 and (text == self._home or text.startswith(self._home + "/")):
            return "~" + text[len(self._home) :]
        return text


def _is_known_name(name: str) -> bool:
    """Whether the name of an option says what it is: `--hf_t` may be the beginning of another's."""
    return is_known(name) and all(len(part) > 1 for part in re.findall("[A-Za-z]+", name))


def _is_component(text: str) -> bool:
    return text in ("", ".", "..", "~") or is_word(
        text.lstrip("."), longest=_LONGEST_COMPONENT, most_unknown=16
    )


def _quoted(word: str) -> str:
    """As for a shell, but `***` and the `~` of the home folder stay as they are."""
    home = "~/" if word.startswith("~/") else ""
    rest = word[len(home) :]
    plain = rest.replace(MASK, "x")
    return home + (rest if shlex.quote(plain) == plain else shlex.quote(rest))
