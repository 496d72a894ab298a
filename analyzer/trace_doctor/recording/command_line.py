"""A command line as it may be kept: without secrets."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from pathlib import Path

_SECRET_NAME = re.compile(
    r"(?<![a-z0-9])(token|secret|passw(or)?d|passphrase|pwd|credentials?|auth|bearer|dsn"
    r"|api[-_.]?key|access[-_.]?key|private[-_.]?key|secret[-_.]?key|key[-_.]?id|[a-z0-9]*key)(?![a-z0-9])",
    re.IGNORECASE,
)
_PLAIN_NAME = re.compile(
    r"(max|num|n|new|min|per|pad|eos|bos|unk|mask|cls|sep|special|prompt|image|text|target)[-_.]?\w*token"
    r"|token(s|izer|ize|ization)?[-_.](id|len|type|name|count|path|dir|file)",
    re.IGNORECASE,
)
_SECRET_VALUE = re.compile(
    r"\b(hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{12,}|gh[opsur]_[A-Za-z0-9]{16,}|github_pat_\w{16,}|glpat-[\w-]{16,}"
    r"|xox[abprs]-[\w-]{8,}|AKIA[A-Z0-9]{12,}|AIza[\w-]{20,}|ya29\.[\w-]{8,}"
    r"|eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*)"
)
_IN_ADDRESS = re.compile(r"(\b[a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s@'\"]+@")
_ASSIGNED = re.compile(r"^(-{0,2}[\w.+/-]+)=(.*)$", re.DOTALL)
HIDDEN = "***"


def masked(command: Sequence[str]) -> str:
    """The command as a shell reads it, with `***` for passwords, tokens and keys, and `~` for the home folder.

    Hidden are the values of options and assignments with such a name (`--token X`, `--api-key=X`, `WANDB_API_KEY=X`),
    what looks like a token of a known service, and the user part of addresses.
    """
    shown: list[str] = []
    hide_next = False
    for word in command:
        if hide_next and not word.startswith("-"):
            shown.append(HIDDEN)
            hide_next = False
            continue
        hide_next = False
        if assigned := _ASSIGNED.match(word):
            name, value = assigned.groups()
            shown.append(f"{name}={HIDDEN if _is_secret(name) and value else _plain(value)}")
            continue
        hide_next = word.startswith("-") and _is_secret(word)
        shown.append(_plain(word))
    return " ".join(map(_quoted, shown))


def _quoted(word: str) -> str:
    """As for a shell, but `***` and the `~` of the home folder stay as they are."""
    home = "~/" if word.startswith("~/") else ""
    rest = word[len(home) :]
    plain = rest.replace(HIDDEN, "x")
    return home + (rest if shlex.quote(plain) == plain else shlex.quote(rest))


def _is_secret(name: str) -> bool:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).replace("_", "-")
    return bool(_SECRET_NAME.search(spaced)) and not _PLAIN_NAME.search(spaced)


def _plain(word: str) -> str:
    word = _SECRET_VALUE.sub(HIDDEN, _IN_ADDRESS.sub(rf"\1{HIDDEN}@", word))
    home = str(Path.home())
    return word.replace(home, "~") if len(home) > 1 else word
