from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path

import jsonschema
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from trace_doctor.errors import NotACapture
from trace_doctor.model import Result, json_schema
from trace_doctor.model.difference import Difference
from trace_doctor.model.treatment import Treatment
from trace_doctor.model.verification import Verification
from trace_doctor.reporters import FORMATS, render
from trace_doctor.reporters.saved import read_saved


def test_results_fit_the_schema(result: Result) -> None:
    jsonschema.Draft202012Validator(json_schema(Result)).validate(json.loads(render(result, "json")))


@pytest.mark.parametrize("form", [Result, Verification, Difference, Treatment])
def test_the_shipped_schemas_are_current(form: type[msgspec.Struct]) -> None:
    shipped = files("trace_doctor.reporters") / f"{form.__name__.lower()}.schema.json"
    schema = json.loads(shipped.read_text(encoding="utf-8"))
    jsonschema.Draft202012Validator.check_schema(schema)
    assert schema == json_schema(form), "run python -m docs.generate"


@pytest.mark.parametrize("fmt", sorted(FORMATS))
def test_a_saved_result_renders_the_same(result: Result, fmt: str) -> None:
    assert render(Result.from_json(result.to_json()), fmt) == render(result, fmt)


@pytest.mark.parametrize("fmt", ["json", "html"])
def test_what_was_written_is_read_back(result: Result, fmt: str, tmp_path: Path) -> None:
    path = tmp_path / "saved"
    path.write_text(render(result, fmt), encoding="utf-8")
    assert read_saved(path).to_json() == result.to_json()


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"{}", "no trace-doctor result"),
        (b'{"traceEvents": []}', "no trace-doctor result"),
        (b"<html></html>", "holds no trace-doctor result"),
        (b"\xff\xfe{\x00}\x00", "text in UTF-16"),
        (b'{"schema_version": 99, "tool": {"name": "trace-doctor"}}', "newer trace-doctor"),
    ],
)
def test_other_files_are_refused_in_one_line(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with pytest.raises(NotACapture, match=says) as refused:
        read_saved(path)
    assert "\n" not in str(refused.value)
    with pytest.raises(NotACapture, match="missing"):
        read_saved(tmp_path / "missing")


@given(st.lists(st.text(max_size=6)), st.lists(st.text('[]{},: \n"\\ab', max_size=5)))
def test_the_layout_changes_nothing_but_spaces(one: list[str], other: list[str]) -> None:
    result = Result(limits=one, config={"a": other, "b": [[1, 2.5], [], {}, None]})
    assert json.loads(result.to_json()) == json.loads(msgspec.json.encode(result))


def test_series_take_one_line(rich_result: Result) -> None:
    text = rich_result.to_json().decode()
    assert '        [0.0, 59300.0, "data_loading"],\n' in text
    assert len(text) < 1.4 * len(msgspec.json.encode(rich_result))


def test_a_console_shows_no_raw_text_of_a_saved_result(rich_result: Result) -> None:
    hostile = "\x1b[31m\n::error::x\n##vso[task.complete]"
    finding = replace(rich_result.findings[0], id=hostile, name=hostile, severity="info", message=hostile)
    saved = Result.from_json(replace(rich_result, findings=[finding]).to_json())
    for shown in (repr(saved), str(saved), repr(saved.findings[0]), str(saved.findings[0])):
        assert all(c.isprintable() or c == "\n" for c in shown)
        assert "##vso[" not in shown
        assert not any(line.lstrip().startswith("::") for line in shown.splitlines())
    assert len(repr(saved).splitlines()) == 2
