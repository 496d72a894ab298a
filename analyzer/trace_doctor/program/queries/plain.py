"""Whether a program is plain: it uses nothing but what is listed here, none of which reads or sets the process's environment,
starts a process, replaces the allocator or runs code that is not written there.

What is on no list is not wrong, only not known: an edit is called safe for plain programs alone.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from pathlib import PurePosixPath

from trace_doctor.errors import UnreadableScript
from trace_doctor.program.nesting_guard import PLAIN, nesting
from trace_doctor.program.project import Project
from trace_doctor.program.text_file import TextFile

_MODULES = re.compile(
    r"__future__|abc|argparse|bisect|collections|contextlib|copy|csv|dataclasses|datetime|enum|functools|glob|heapq|itertools"
    r"|json|logging|math|numbers|pathlib|pprint|random|re|statistics|string|tempfile|textwrap|time|typing|warnings"
    r"|PIL|numpy|torchvision|tqdm"
)
"""modules of which all is known, as far as no other module is reached through them"""
_PARTS = re.compile(r"os|sys|torch")
"""modules of which the names in `_KNOWN` are"""
_KNOWN = re.compile(
    r"""(?x) os\.(?:path(?:\.\w+)? | cpu_count | getcwd | listdir | makedirs | sep)
    | sys\.(?:argv | exit | maxsize | platform | stderr(?:\.\w+)? | stdout(?:\.\w+)? | version | version_info)
    | torch\.(?:(?:amp | autograd | backends | linalg | nn | optim | profiler)(?:\.\w+)+ | utils\.(?:checkpoint | data)\.\w+
        | cuda\.(?:amp\.\w+ | current_device | device_count | empty_cache | get_device_name | get_device_properties | is_available
            | is_bf16_supported | manual_seed | manual_seed_all | max_memory_allocated | memory_allocated | set_device
            | set_per_process_memory_fraction | synchronize)
        | (?:b?float | bool | complex | double | half | u?int | long)\d* | channels_last | contiguous_format | preserve_format
        | Generator | Tensor | device | dtype | e | inf | nan | pi | (?:no_grad | inference_mode) | __version__)"""
)
_FUNCTION = re.compile(r"torch\.[a-z]\w*")
"""known where it is called"""
_BY_TEXT = re.compile(r"breakpoint|compile|delattr|eval|exec|getattr|globals|locals|setattr|vars")
"""builtins that lead to names which nobody has written"""
_HIDDEN = re.compile(r"__(?!(?:all|call|class|doc|getitem|init|iter|len|name|next|version)__).*__")
"""names with underscores on both sides that may lead to a module, or to the file"""
_FILES = 200
"""A program of more is not read for this."""


def not_plain(project: Project) -> str | None:
    """The first use, in words, that keeps a program from being plain; None where it is."""
    sources = project.sources()
    own = {part for name in sources for part in PurePosixPath(name).with_suffix("").parts}
    if hidden := sorted(filter(_is_listed, own)):
        return f"{hidden[0]} is a module of its own"
    if len(sources) > _FILES:
        return f"it has more than {_FILES} files"
    for name, data in sources.items():
        tree = _parse(name, data)
        if tree is None:
            return f"{name} cannot be read"
        if use := next(_unknown(tree, own), None):
            return f"{name}:{use[0]} uses {use[1]}"
    return None


def _parse(name: str, data: bytes) -> ast.Module | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            text = TextFile(data, name).text
            return ast.parse(text) if nesting(text) <= PLAIN else None
        except (UnreadableScript, SyntaxError, ValueError, RecursionError, MemoryError):
            return None


def _unknown(tree: ast.Module, own: set[str]) -> Iterator[tuple[int, str]]:
    """(line, name) of what is on no list."""
    imported: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for alias in node.names:
                module = (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
                root = module.split(".")[0]
                is_own = root in own or (isinstance(node, ast.ImportFrom) and node.level > 0)
                if alias.name == "*" or (is_own and _PARTS.fullmatch(alias.name)):
                    yield node.lineno, f"from {module} import {alias.name}"
                if is_own:
                    continue
                if not _is_listed(root):
                    yield node.lineno, module
                full = f"{module}.{alias.name}" if isinstance(node, ast.ImportFrom) else alias.name
                name = alias.asname or (alias.name if isinstance(node, ast.ImportFrom) else root)
                imported.setdefault(name, set()).add(full if alias.asname or name != root else root)
        elif isinstance(node, ast.keyword) and node.arg == "multiprocessing_context":
            yield node.value.lineno, "multiprocessing_context"
    called = {id(n.func) for n in ast.walk(tree) if isinstance(n, ast.Call)}
    inner = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute | ast.Name):
            continue
        name, others = (node.attr, _PARTS) if isinstance(node, ast.Attribute) else (node.id, _BY_TEXT)
        if others.fullmatch(name) or _HIDDEN.fullmatch(name):
            yield node.lineno, name
        if id(node) in inner:
            continue
        root, *rest = _parts(node)
        for full in imported.get(root, ()):
            if not _is_known(full_name := ".".join([full, *rest]), called=id(node) in called):
                yield node.lineno, full_name


def _parts(node: ast.expr) -> list[str]:
    """`a`, `b`, `c` of `a.b.c`; an empty first part where it begins with another expression."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return [node.id if isinstance(node, ast.Name) else "", *reversed(parts)]


def _is_listed(module: str) -> bool:
    return (_MODULES.fullmatch(module) or _PARTS.fullmatch(module)) is not None


def _is_known(name: str, *, called: bool) -> bool:
    root, *parts = name.split(".")
    if _MODULES.fullmatch(root):
        return not any(re.match("_(?!_)", part) for part in parts)
    return _KNOWN.fullmatch(name) is not None or (called and _FUNCTION.fullmatch(name) is not None)
