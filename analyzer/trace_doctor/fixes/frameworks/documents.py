"""Values of JSON and YAML files by their path, and edits of them that leave every other character as it was.

JSON is read whole. Of YAML only what configuration files of launchers are made of: block mappings of scalars; a value of
any other form (flow collection, anchor, alias, tag, block scalar, list) is there and is never touched.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

import yaml

from trace_doctor.program.edits import Candidate, Edit, NoEdit
from trace_doctor.program.text_file import TextFile

OTHER: Final = ...
"""the value of what is neither a mapping nor a scalar that is understood"""
Values = Mapping[str, Any]
"""what a file is to say: nested mappings of scalars"""


@dataclass
class Node:
    """A value with the characters [start, end) it stands on. `members` are those of a mapping, None for a scalar."""

    start: int
    end: int
    value: object = OTHER
    members: dict[str, Node] | None = None
    keys: list[int] = field(default_factory=list)
    """where the members' keys start"""
    duplicates: set[str] = field(default_factory=set)
    """keys that the mapping has more than once"""

    def add(self, key: str, start: int, value: Node) -> None:
        """A member of a mapping; `start` is the offset of its key. Of one key that comes twice the last counts."""
        assert self.members is not None
        if key in self.members:
            self.duplicates.add(key)
        self.members[key] = value
        self.keys.append(start)


class Document:
    """The mapping that a JSON or YAML file holds.

    Raises NoEdit (display) where it holds none, or is written in a way that is not understood.
    """

    def __init__(self, file: TextFile) -> None:
        self.file = file
        self.is_json = file.name.endswith(".json")
        self.root = (_json if self.is_json else _yaml)(file)

    def find(self, *path: str) -> Node | None:
        """The value at a path of keys."""
        node: Node | None = self.root
        for key in path:
            node = node.members.get(key) if node is not None and node.members is not None else None
        return node

    def value(self, *path: str) -> object:
        """The scalar at a path; None where there is none, `OTHER` where it is no scalar."""
        node = self.find(*path)
        return None if node is None else node.value

    def line(self, *path: str) -> int:
        """Line (1-based) of a value, or of the last thing above it that is there."""
        node = self.root
        for key in path:
            node = (node.members or {}).get(key, node)
        return self.file.line_of(node.start)

    def merge(self, values: Values) -> list[Edit]:
        """Edits after which the file says what is wanted beside all that it said. None where it does already.

        Raises NoEdit (display) where something of another kind stands in the way.
        """
        return list(self._merge(self.root, values, ()))

    def _merge(self, node: Node, values: Values, path: tuple[str, ...]) -> Iterator[Edit]:
        assert node.members is not None
        additions: dict[str, Any] = {}
        for key, value in values.items():
            here = (*path, key)
            there = node.members.get(key)
            if there is None:
                additions[key] = value
                continue
            if key in node.duplicates:
                raise self._refusal(here, f"{key} is set more than once")
            if isinstance(value, Mapping):
                if there.members is None and (self.is_json or there.value is not None):
                    raise self._refusal(here, f"{'.'.join(here)} is no mapping")
                if there.members:
                    yield from self._merge(there, value, here)
                else:
                    yield self._insertion(there, value, here)
            elif there.members is not None or there.value is OTHER:
                raise self._refusal(here, f"{'.'.join(here)} is no plain value")
            elif there.value != value or type(there.value) is not type(value):
                text = self._scalar(value)
                yield Edit(there.start, there.end, text, f"key:{'.'.join(here)}", text)
        if additions:
            yield self._insertion(node, additions, path)

    def candidate(self, *path: str) -> Candidate:
        """The line of a value, as people are shown it."""
        return Candidate.of(self.file, self.line(*path))

    def _refusal(self, path: tuple[str, ...], why: str) -> NoEdit:
        return NoEdit("display", why, [self.candidate(*path)])

    def _scalar(self, value: Any) -> str:
        return json.dumps(value) if self.is_json else _yaml_scalar(value)

    # ------------------------------------------------------------------ new members

    def _insertion(self, node: Node, additions: Values, path: tuple[str, ...]) -> Edit:
        """New members below the last one, in the style of the mapping."""
        key = f"keys:{'.'.join(path)}:{','.join(additions)}"
        if not node.members and not self.is_json:
            return Edit(*self._yaml_first(node, additions, path), key, json.dumps(additions))
        at, text = (
            self._json_members(node, additions) if self.is_json else self._yaml_members(node, additions)
        )
        return Edit(at, at, text, key, json.dumps(additions))

    def _json_members(self, node: Node, additions: Values) -> tuple[int, str]:
        indent = self._own_line(node.keys[-1]) if node.members else None
        unit = self._unit() if indent is not None else None
        texts = ((json.dumps(k), json.dumps(v, indent=unit)) for k, v in additions.items())
        pairs = [f"{key}: {text}".replace("\n", f"\n{indent}") for key, text in texts]
        if not node.members:
            return node.start + 1, ", ".join(pairs)
        gap = " " if indent is None else f"\n{indent}"
        return list(node.members.values())[-1].end, "".join(f",{gap}{pair}" for pair in pairs)

    def _yaml_members(self, node: Node, additions: Values) -> tuple[int, str]:
        file = self.file
        last = file.line_of(max(node.start, node.end - 1))
        indent = self._own_line(node.keys[0]) or ""
        text = "\n".join(_yaml_lines(additions, indent, self._unit()))
        if last < len(file.line_starts):
            return file.line_starts[last], text + "\n"
        return len(file.text), "\n" + text

    def _yaml_first(self, node: Node, additions: Values, path: tuple[str, ...]) -> tuple[int, int, str]:
        """Members of a mapping that is empty: `key:`, `key: {}`."""
        line = self.file.line_of(node.start)
        whole = self.file.line_text(line)
        if "#" in whole:
            raise self._refusal(path, f"{'.'.join(path)} is empty")
        indent = whole[: len(whole) - len(whole.lstrip())] + self._unit()
        start = self.file.line_starts[line - 1]
        colon = start + whole[: node.start - start].rstrip().rindex(":") + 1
        return colon, start + len(whole), "\n" + "\n".join(_yaml_lines(additions, indent, self._unit()))

    def _own_line(self, start: int) -> str | None:
        """The indentation of what stands first on its line."""
        line = self.file.line_starts[self.file.line_of(start) - 1]
        before = self.file.text[line:start]
        return None if before.strip() else before

    def _unit(self) -> str:
        """One level of indentation."""
        depths = [m[1] for m in re.finditer(r"(?m)^([ \t]*)[^\s#]", self.file.text)]
        deeper = [b[len(a) :] for a, b in pairwise(depths) if b.startswith(a) and len(b) > len(a)]
        return Counter(deeper).most_common(1)[0][0] if deeper else "  "


# ---------------------------------------------------------------------- JSON

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')


def _json(file: TextFile) -> Node:
    try:
        if not isinstance(json.loads(file.text), dict):
            raise ValueError
    except (ValueError, RecursionError):
        raise NoEdit("display", f"{file.name} is no plain JSON object") from None
    top = Node(0, len(file.text), members={})
    stack, key = [top], None
    for token in _TOKEN.finditer(file.text):
        text, owner = token[0], stack[-1]
        if text in "{[":
            node = Node(token.start(), token.end(), members={} if text == "{" else None)
            _place(owner, key, node)
            stack.append(node)
            key = None
        elif text in "}]":
            stack.pop().end = token.end()
            key = None
        elif text in ",:":
            continue
        elif owner.members is not None and key is None and owner is not top:
            key = (str(json.loads(text)), token.start())
        else:
            _place(owner, key, Node(token.start(), token.end(), json.loads(text)))
            key = None
    return top.members[""] if top.members else top


def _place(owner: Node, key: tuple[str, int] | None, node: Node) -> None:
    if owner.members is not None:
        owner.add(key[0] if key else "", key[1] if key else 0, node)


# ---------------------------------------------------------------------- YAML


def _yaml(file: TextFile) -> Node:
    """The events of PyYAML, by which aliases and anchors can be told, with their places."""
    try:
        events = list(yaml.parse(file.text, Loader=yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError):
        events = []
    documents = [e for e in events if isinstance(e, yaml.DocumentStartEvent)]
    ends = [e for e in events if isinstance(e, yaml.DocumentEndEvent)]
    top = Node(0, 0, members={})
    if len(documents) == 1 and not (documents[0].version or documents[0].tags or ends[0].explicit):
        owners = [_Owner(top, keyed=False)]
        for event in events:
            _take(owners, event)
    root = (top.members or {}).get("")
    if root is None or not root.members:
        raise NoEdit("display", f"{file.name} is not written as one plain mapping")
    return root


@dataclass
class _Owner:
    """A collection whose members are being read. `key` is the one whose value comes next."""

    node: Node
    keyed: bool
    key: tuple[str, int] | None = None

    def take(self, node: Node, key: tuple[str, int] | None) -> None:
        """A member, or in its turn the key of one."""
        self.node.end = max(self.node.end, node.end)
        if self.keyed and self.key is None:
            self.key = key or ("", node.start)
            if key is None or key[0] == "<<":  # what a merged mapping holds stands elsewhere
                self.node.members, self.node.value = None, OTHER
        elif self.node.members is not None:
            self.node.add(*(self.key or ("", 0)), node)
            self.key = None
        else:
            self.key = None


def _take(owners: list[_Owner], event: yaml.Event) -> None:
    assert event.start_mark is not None and event.end_mark is not None
    start, end = event.start_mark.index, event.end_mark.index
    if isinstance(event, yaml.CollectionStartEvent):
        plain = not (event.anchor or event.tag)
        mapping = isinstance(event, yaml.MappingStartEvent)
        node = Node(start, start if plain else end, members={} if mapping and plain else None)
        owners.append(_Owner(node, keyed=mapping))
        if event.flow_style:
            node.end = -1  # until its bracket
    elif isinstance(event, yaml.CollectionEndEvent):
        node = owners.pop().node
        if start < end:  # a bracket; blocks end with what is in them
            node.end = end
            node.members = None if node.members is None or node.members else {}
        owners[-1].take(node, None)
    elif isinstance(event, yaml.ScalarEvent):
        one_line = event.start_mark.line == event.end_mark.line
        value = _scalar(event) if one_line else OTHER
        owners[-1].take(Node(start, end, value), (event.value, start))
    elif isinstance(event, yaml.AliasEvent):
        owners[-1].take(Node(start, end), None)


def _scalar(event: yaml.ScalarEvent) -> object:
    """The value of a scalar; OTHER where it has an anchor or a tag, or is a block."""
    if event.anchor or event.tag or event.style in ("|", ">"):
        return OTHER
    return event.value if event.style else _meaning(event.value)


def _meaning(text: str) -> object:
    """What a plain scalar stands for: a number, a truth value, nothing, a date or a text."""
    loader = yaml.SafeLoader("")
    try:
        tag = loader.resolve(yaml.ScalarNode, text, (True, False))  # type: ignore[no-untyped-call]
        node = yaml.ScalarNode(tag, text)
        return loader.construct_object(node)
    except (yaml.YAMLError, ValueError):
        return OTHER


def _yaml_scalar(value: Any) -> str:
    if isinstance(value, str):
        plain = re.fullmatch(r"[A-Za-z_][\w./-]*", value) and isinstance(_meaning(value), str)
        return value if plain else "'" + value.replace("'", "''") + "'"
    return json.dumps(value)


def _yaml_lines(additions: Values, indent: str, unit: str) -> Iterator[str]:
    for key, value in additions.items():
        if isinstance(value, Mapping):
            yield f"{indent}{key}:"
            yield from _yaml_lines(value, indent + unit, unit)
        else:
            yield f"{indent}{key}: {_yaml_scalar(value)}"
