"""JSON and YAML files are edited where a value stands, and nowhere else."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest

from trace_doctor.fixes.frameworks.documents import Document
from trace_doctor.program.edits import NoEdit, apply
from trace_doctor.program.text_file import TextFile

CONFIG = {
    "bf16": {"enabled": "auto"},
    "zero_optimization": {"stage": 2, "list": [{"stage": 1}, 2], "none": None},
    "empty": {},
    "text": 'a"}{,:\\b',
}
WANTED = {
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu", "pin_memory": True}},
    "empty": {"x": 1, "y": 2},
    "new": "auto",
}
ACCELERATE = """\
compute_environment: LOCAL_MACHINE
# the machine
debug: false
deepspeed_config:
  # how far
  zero_stage: 2   # two
  hosts:
  - a: 1
  - b
  file: 'x: y # z'
dynamo_config:
fsdp_config: {}
distributed_type: 'NO'
mixed_precision: 'no'
fp8_config: {a: 1}
about: |
  zero_stage: here
    mixed_precision: more
use_cpu: false
"""


def document(text: str, name: str = "a.yaml") -> Document:
    return Document(TextFile(text.encode(), name))


def edited(text: str, wanted: dict[str, Any], name: str = "a.yaml") -> str:
    made = document(text, name)
    return apply(made.file, made.merge(wanted))


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    return old | {k: merged(old.get(k) or {}, v) if isinstance(v, dict) else v for k, v in new.items()}


@pytest.mark.parametrize("indent", [None, 2, 4, "\t"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_json_says_what_is_wanted_beside_what_it_said(indent: int | str | None, newline: str) -> None:
    text = json.dumps(CONFIG, indent=indent).replace("\n", newline) + newline
    out = edited(text, WANTED, "ds.json")
    assert json.loads(out) == merged(CONFIG, WANTED)
    assert ("\r\n" in out) == (newline == "\r\n" and "\r\n" in text)
    assert not document(out, "ds.json").merge(WANTED)
    kept = [line for line in text.split(newline) if line.strip(" \t{}[],")]
    lines = {line.rstrip(",") for line in out.split(newline)}
    if indent is not None:
        assert sum(line.rstrip(",") not in lines for line in kept) == 3  # bf16.enabled, stage, empty


def test_json_of_any_shape() -> None:
    """Random objects, written in random styles: what comes out is the merged object."""
    dice = random.Random(7)

    def some(depth: int) -> Any:
        kind = dice.randrange(5 if depth else 3)
        if kind == 3:
            return [some(depth - 1) for _ in range(dice.randrange(3))]
        if kind == 4:
            return {dice.choice("abcdef"): some(depth - 1) for _ in range(dice.randrange(4))}
        return dice.choice([1, -2.5, True, None, "x", 'q"{', "ü"])

    for _ in range(300):
        old = {"a": some(3), "b": some(2), "m": {"x": some(1)}}
        text = json.dumps(old, indent=dice.choice([None, 1, 4]), ensure_ascii=dice.random() < 0.5)
        wanted = {"m": {"x2": dice.choice([1, "y"]), "deep": {"er": True}}, "c": 3}
        assert json.loads(edited(text, wanted, "a.json")) == merged(old, wanted)


@pytest.mark.parametrize(
    "dress",
    [
        lambda t: t,
        lambda t: "---\n" + t,
        lambda t: t.rstrip("\n"),
        lambda t: t.replace("\n", "\r\n"),
        lambda t: t + "\n# the end\n\n",
    ],
)
def test_yaml_keeps_every_other_line(dress: Any) -> None:
    wanted = {
        "mixed_precision": "bf16",
        "deepspeed_config": {"zero_stage": 3, "offload": {"device": "none"}},
        "dynamo_config": {"dynamo_backend": "INDUCTOR"},
        "fsdp_config": {"fsdp_version": 2},
        "answer": "no",
    }
    out = edited(dress(ACCELERATE), wanted)
    expected = (
        ACCELERATE.replace("zero_stage: 2   #", "zero_stage: 3   #")
        .replace("z'\n", "z'\n  offload:\n    device: none\n")
        .replace("dynamo_config:\n", "dynamo_config:\n  dynamo_backend: INDUCTOR\n")
        .replace("fsdp_config: {}\n", "fsdp_config:\n  fsdp_version: 2\n")
        .replace("mixed_precision: 'no'", "mixed_precision: bf16")
        .replace("use_cpu: false\n", "use_cpu: false\nanswer: 'no'\n")
    )
    assert out == dress(expected)
    assert not document(out).merge(wanted)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("k: no", False), ("k: 'no'", "no"), ('k: "no"', "no"), ("k: 3 # c", 3), ("k: 1.5", 1.5), ("k: a#b", "a#b"),
        ("k: a b", "a b"), ("k: ~", None), ("k:", None), ("k: [1]", ...), ("k: *x", ...), ("k: it's", "it's"),
        ("k: 012", 10), ("k: 1e3", "1e3"), ("k: 1\n  2", ...), ("k:\n- 1", ...), ("k: |\n  a: 1", ...),
        ("k: &x 1", ...), ("k: !!str 1", ...), ("k: |", ...), ("k: >", ...), ("k: &x {}", ...), ("k: !x {}", ...),
    ],
)  # fmt: skip
def test_scalars_of_yaml(text: str, value: object) -> None:
    assert document(f"{text}\nz: 1\n").value("k") == value
    assert document(f"{text}\nz: 1\n").value("z") == 1


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("- a\n- b\n", "a.yaml"), ("a: 1\n---\nb: 2\n", "a.yaml"), ("\ta: 1\n", "a.yaml"), ("{a: 1}\n", "a.yaml"),
        ("a: 1\n  b: 2\nc: 1\n", "a.yaml"), ("%YAML 1.1\n---\na: 1\n", "a.yaml"), ("%TAG ! tag:x:\n---\na: 1\n", "a.yaml"), ("a: 1\n...\n", "a.yaml"),
        ("", "a.yaml"), ("// c\n{}", "a.json"), ("[1]", "a.json"), ("{", "a.json"), ("[" * 100_000, "a.json"),
    ],
)  # fmt: skip
def test_what_is_no_plain_mapping_is_left_alone(text: str, name: str) -> None:
    with pytest.raises(NoEdit):
        document(text, name)


@pytest.mark.parametrize(
    ("text", "name", "wanted"),
    [
        ("a: {b: 1}\n", "a.yaml", {"a": {"b": 2}}),
        ("a: &x 1\n", "a.yaml", {"a": 2}),
        ("a: 1\na: 2\n", "a.yaml", {"a": 3}),
        ("a:  # nothing\n", "a.yaml", {"a": {"b": 2}}),
        ("a: !x 1\n", "a.yaml", {"a": 2}),
        ("a: &x {}\n", "a.yaml", {"a": {"b": 2}}),
        ("a: !x\n  b: 1\n", "a.yaml", {"a": {"b": 2}}),
        ("x: &d {b: 1}\na:\n  <<: *d\n  b: 2\n", "a.yaml", {"a": {"b": 3}}),
        ('{"a": [1]}', "a.json", {"a": 2}),
        ('{"a": 1}', "a.json", {"a": {"b": 2}}),
        ('{"a": null}', "a.json", {"a": {"b": 2}}),
        ('{"a": 1, "a": 2}', "a.json", {"a": 3}),
    ],
)
def test_what_stands_in_the_way_is_shown(text: str, name: str, wanted: dict[str, Any]) -> None:
    with pytest.raises(NoEdit) as refused:
        document(text, name).merge(wanted)
    assert refused.value.kind == "display"
    assert refused.value.candidates[0].file == name


@pytest.mark.parametrize(
    ("old", "value", "new"),
    [
        ("1", True, "true"), ("true", 1, "1"), ("1", 1, "1"), ("a", "a b", "'a b'"), ("a", "it's", "'it''s'"),
        ("a", "no", "'no'"), ("a", "b/c-d", "b/c-d"), ("a", "3", "'3'"), ("'1'", 1, "1"), ("a", "", "''"),
    ],
)  # fmt: skip
def test_a_scalar_of_yaml_is_written_as_what_it_is(old: str, value: object, new: str) -> None:
    out = edited(f"k: {old}\n", {"k": value})
    assert out == f"k: {new}\n"
    assert document(out).value("k") == value
