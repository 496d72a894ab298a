"""Tells scripts that are safe to parse from those nested so deeply that they could take the parser's stack, and all
of this process, with them.

LibCST's parser is native code that calls itself for each level: some thousand brackets in a file of kilobytes end in a
segmentation fault, and its visitors reach Python's own limit long before. A file that looks plain is parsed at once;
any other is tried in a child process first.
"""

from __future__ import annotations

import re
import sys

import libcst as cst
from libcst.metadata import MetadataWrapper, ParentNodeProvider, QualifiedNameProvider

from trace_doctor.errors import UnreadableScript
from trace_doctor.isolation import Crashed, OutOfMemory, OutOfTime, isolated

PLAIN = 120
"""Levels that every stack has room for: Python's limit of 1000 calls is about 200 of a syntax tree."""
_MARGIN = 250
"""Calls of whoever walks the tree later."""
_MEMORY, _SECONDS = 1 << 30, 10

_PIECE = re.compile(
    r"(?P<format>[rR]?[fF][rR]?)?(?P<quote>\"\"\"|'''|\"|')"
    r"|#[^\n]*|(?P<open>[(\[{])|(?P<close>[)\]}])|(?P<comma>,)|(?P<line>\n[ \t]*(?P<elif>elif\b)?)"
    r"|(?P<other>[^\s\w]|\b(?:not|and|or|if|else|lambda|await|for|in|is|yield|from|import)\b)"
)
_ENDS = {q: re.compile(r"(?:[^\\]|\\.)*?" + q, re.S) for q in ('"""', "'''")} | {
    q: re.compile(rf"(?:[^\\\n{q}]|\\.)*{q}", re.S) for q in ('"', "'")
}
_SIGN = re.compile(r"[^\s\w]")
_INNER = re.compile(r"'[^'{}]*'|\"[^\"{}]*\"")
_ODD = re.compile(r"\{[^{}]*['\"\n]")


def _plain_format(inside: str) -> bool:
    """Whether what stands in an f-string surely ends where it seems to: since Python 3.12 its code may hold strings in
    the same quotes."""
    return inside.count("{") == inside.count("}") and _ODD.search(_INNER.sub("", inside)) is None


def nesting(text: str) -> int:
    """An upper bound of how deep the syntax tree of a script is below a statement: what can open a level and has not
    been closed or parted by a comma, at the worst place. Infinite where strings cannot be told from code for sure."""
    worst, total, counts, elifs, at = 0, 0, [0], 0, 0
    while (match := _PIECE.search(text, at)) is not None:
        at = match.end()
        if (quote := match["quote"]) is not None:
            end = _ENDS[quote].match(text, at)
            inside = text[at : end.end() - len(quote)] if end else ""
            if end is None or (match["format"] and not _plain_format(inside)):
                return sys.maxsize
            at = end.end()
            growth = 1 + (len(_SIGN.findall(inside)) if match["format"] else 0)
        elif match["open"]:
            counts.append(0)
            growth = 0
        elif match["close"]:
            total -= counts.pop() if len(counts) > 1 else 0
            growth = 1
        elif match["other"]:
            growth = 1
        elif match["comma"] or (match["line"] and len(counts) == 1):
            total -= counts[-1]
            counts[-1], growth = 0, 0
            elifs += bool(match["elif"])
        else:
            continue
        counts[-1] += growth
        total += growth
        worst = max(worst, total + len(counts))
    return worst + elifs


def try_to_parse(text: str, name: str) -> None:
    """Parses and walks a script in a child process. Raises UnreadableScript when that fails, takes too long or kills it."""

    def work() -> None:
        sys.setrecursionlimit(sys.getrecursionlimit() - _MARGIN)
        wrapper = MetadataWrapper(cst.parse_module(text), unsafe_skip_copy=True)
        for provider in (ParentNodeProvider, QualifiedNameProvider):
            wrapper.resolve(provider)

    try:
        isolated(work, memory=_MEMORY, seconds=_SECONDS)
    except (Crashed, OutOfMemory, RecursionError):
        raise UnreadableScript(f"{name}: nested too deeply to be parsed; it is left alone") from None
    except OutOfTime:
        raise UnreadableScript(f"{name}: takes too long to parse; it is left alone") from None
    except cst.ParserSyntaxError:
        return  # the parser itself says where
