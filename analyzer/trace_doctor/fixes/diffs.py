"""Unified diffs that `git apply` takes, made from bytes so that any encoding and line end survives."""

from __future__ import annotations

import difflib
import re

from trace_doctor.errors import no_commands

_CONTEXT = 3


def unified_diff(path: str, before: bytes, after: bytes) -> bytes:
    """One file's diff with `diff --git` header (paths from the top of the repository); empty when nothing changes."""
    if before == after:
        return b""
    a, b = _lines(before), _lines(after)
    head = [f"diff --git {_quote('a/' + path)} {_quote('b/' + path)}"]
    tab = "\t" if " " in path else ""
    head += [f"--- {_quote('a/' + path)}{tab}", f"+++ {_quote('b/' + path)}{tab}"]
    body: list[str] = []
    for group in difflib.SequenceMatcher(None, a, b, autojunk=False).get_grouped_opcodes(_CONTEXT):
        (_, i1, _, j1, _), (_, _, i2, _, j2) = group[0], group[-1]
        body.append(f"@@ -{_extent(i1, i2)} +{_extent(j1, j2)} @@\n")
        for tag, i1, i2, j1, j2 in group:
            if tag == "equal":
                body += [" " + line for line in a[i1:i2]]
                continue
            body += ["-" + line for line in a[i1:i2]]
            body += ["+" + line for line in b[j1:j2]]
    text = [line + "\n" for line in head] + [_with_newline(line) for line in body]
    # latin-1 maps bytes to characters one to one; the path alone is real text
    return "".join(text[:3]).encode("utf-8") + "".join(text[3:]).encode("latin-1")


def _lines(data: bytes) -> list[str]:
    """Lines with their end, split at LF only, as git does; a range line marks those without."""
    return re.findall(r"[^\n]*\n|[^\n]+", data.decode("latin-1"))


def _with_newline(line: str) -> str:
    return line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _extent(start: int, stop: int) -> str:
    count = stop - start
    if count == 1:
        return f"{start + 1}"
    return f"{start + 1 if count else start},{count}"


def _quote(path: str) -> str:
    """As git writes names that hold quotes, backslashes, characters that do not show or bytes that are no UTF-8; those that
    hold a command to a CI server as well, without its `#`."""
    if no_commands(path) == path and path.isprintable() and not set('"\\') & set(path):
        return path
    return f'"{"".join(map(_escape, path))}"'


_ESCAPES = {"#": "\\043", '"': '\\"', "\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}


def _escape(char: str) -> str:
    if "\udc80" <= char <= "\udcff":  # a byte that the file system's encoding has no character for
        return f"\\{ord(char) - 0xDC00:03o}"
    return _ESCAPES.get(char) or (
        char if char.isprintable() else "".join(f"\\{b:03o}" for b in char.encode())
    )
