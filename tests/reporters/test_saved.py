"""Whatever a saved result holds: it is rendered, planned and compared, or refused in one line."""

from __future__ import annotations

import gzip
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from trace_doctor.api import diff, verify
from trace_doctor.errors import NotACapture, TraceDoctorError, UnusableResult, UsageError
from trace_doctor.fixes import plan, with_diffs
from trace_doctor.gate.baseline import Baseline, read_baseline
from trace_doctor.model import Finding, Fix, Input, Result
from trace_doctor.reporters import FORMATS, render
from trace_doctor.reporters.embedded_json import LARGEST, embedded
from trace_doctor.reporters.saved import is_page_of_ours, read_saved, saved_result
from trace_doctor.reporters.seals import sealed

SCRIPT = """\
import torch
from torch.utils.data import DataLoader

loader = DataLoader([1])
for x in loader:
    loss = model(x)
    loss.backward()
    optimizer.step()
"""
Path_ = tuple[str | int, ...]
ODD: dict[type, st.SearchStrategy[Any]] = {
    bool: st.sampled_from([None, 1, "true"]),
    int: st.sampled_from([-1, 0, 7, 1 << 31, 1 << 53, 1 << 63, 1 << 64, -(1 << 63), 10**30, None, 1.5]),
    float: st.sampled_from([-1.0, 0.0, 5e-324, 1e18, 1e308, -1e308, None, 3]),
    str: st.sampled_from(["", "\n", "\x1b[31m", "\x00", "\u202e", "../x.py", "/etc/passwd", "nan", "</script>", "\U0001f600"])
    | st.text(max_size=8),
    list: st.sampled_from([[], {}, None, [None], [[]]]),
    dict: st.sampled_from([{}, [], None]),
    type(None): st.sampled_from([0, -1, "x", [], {}, 1.5, 1 << 62, 1e300]),
}  # fmt: skip


def places(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """Where values stand, of long lists the first only."""
    if path:
        yield path
    items = (
        value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    )
    for key, inner in items:
        yield from places(inner, (*path, key))


def damaged(data: st.DataObject, saved: dict[str, Any]) -> dict[str, Any]:
    """One to three of its values deleted or replaced, rare kinds of places as often as frequent ones."""
    for _ in range(data.draw(st.integers(1, 3))):
        kinds: dict[Path_, list[Path_]] = defaultdict(list)
        for path in places(saved):
            kinds[tuple(p for p in path if isinstance(p, str))].append(path)
        path = data.draw(st.sampled_from(kinds[data.draw(st.sampled_from(sorted(kinds)))]))
        owner: Any = saved
        for key in path[:-1]:
            owner = owner[key]
        if data.draw(st.booleans()):
            owner[path[-1]] = deepcopy(
                data.draw(ODD[type(owner[path[-1]])])
            )  # a later one may damage it again
        else:
            del owner[path[-1]]
    return saved


@pytest.mark.parametrize("fixture", ["rich_result", "snapshot_result", "cpu_result"])
@settings(deadline=None, max_examples=60, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_damaged_result_is_used_or_refused_in_one_line(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    fixture: str,
    data: st.DataObject,
) -> None:
    result: Result = request.getfixturevalue(fixture)
    folder = tmp_path_factory.mktemp("saved")
    (folder / "train.py").write_text(SCRIPT)
    (folder / "r.json").write_text(json.dumps(damaged(data, json.loads(result.to_json()))))
    try:
        read = read_saved(folder / "r.json")
    except NotACapture as refused:
        assert str(refused).startswith("r.json") and len(str(refused)) < 500
        return
    for fmt in sorted(FORMATS):
        render(read, fmt, zoom=False)
    plan(read, folder).patch()
    assert Result.from_json(with_diffs(read, folder).to_json())
    Baseline.of(read).to_json()
    for compare in (verify, diff):
        for sides in ((read, result), (result, read)):
            try:
                compare(*sides)
            except TraceDoctorError as refused:
                assert "\n" not in str(refused)


@pytest.mark.parametrize("text", ["zz", "", "a\n\u2028\x1b[31m::error::x"], ids=["word", "empty", "lines"])
def test_every_text_of_a_saved_result_may_be_any(rich_result: Result, tmp_path: Path, text: str) -> None:
    """One of each kind of place at a time: refused in one line, or rendered in every format."""
    saved, rendered = json.loads(rich_result.to_json()), 0
    kinds: dict[Path_, Path_] = {}
    for path in places(saved):
        kinds.setdefault(tuple(p for p in path if isinstance(p, str)), path)
    for path in kinds.values():
        owner = changed = deepcopy(saved)
        for key in path[:-1]:
            owner = owner[key]
        if not isinstance(owner[path[-1]], str):
            continue
        owner[path[-1]] = text
        (tmp_path / "r.json").write_text(json.dumps(changed))
        try:
            read = read_saved(tmp_path / "r.json")
        except NotACapture as refused:
            assert str(refused).isprintable() and len(str(refused)) < 500, path
            continue
        for fmt in sorted(FORMATS):
            render(read, fmt, zoom=False)
        rendered += 1
    assert rendered > 30


@settings(deadline=None, max_examples=40, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_a_damaged_baseline_is_read_or_refused_in_one_line(
    rich_result: Result, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("baseline") / "b.json"
    path.write_text(json.dumps(damaged(data, json.loads(Baseline.of(rich_result).to_json()))))
    try:
        read_baseline(path)
    except TraceDoctorError as refused:
        assert "\n" not in str(refused)


@pytest.mark.parametrize(
    ("place", "value", "says"),
    [
        (("findings", 0, "input"), -1, r"int. >= 0 - at .\$.findings\[0\].input"),
        (("kernels", 0, "input"), -(1 << 63), "int. >= 0"),
        (("inputs", 0, "steps"), -5, r"int. >= 0 - at .\$.inputs\[0\].steps"),
        (("findings", 0, "saving", "known"), "about", "needs its interval"),
        (("findings", 0, "saving", "low"), 1.5, "holds 1"),
        (("findings", 0, "saving", "high"), 0.5, "holds 1"),
        (("inputs", 0, "work"), {"kernels": -1.0}, "float. >= 0"),
        (("kernels", 0, "count"), -1, "int. >= 0"),
        (("time_ledger", 0, "idle_ns", "sync"), -1, "int. >= 0"),
        (("steps", 0, "dur_us"), -0.5, "float. >= 0"),
        (("what_if", 0, "step_us"), -1.0, "float. >= 0"),
        (("summary", "gpu_idle_share"), 1.01, "float. <= 1"),
        (("memory_timeline", 0, "live_by_category", "activations", 0), -1, "int. >= 0"),
        (("memory_timeline", 0, "peak_index"), 1 << 40, "memory series"),
        (("memory_timeline", 0, "at"), [0.0], "memory series"),
        (("timeline", 0, "dur_us"), 5e-324, "shorter than any clock"),
        (("timeline", 0, "dur_us"), -1.0, "float. >= 0"),
        (("summary", "step_us"), 1e308, "nothing measures"),
        (("config", "any"), {"deep": [10**40]}, "nothing measures"),
    ],
    ids=str,
)
def test_what_no_analysis_writes_is_refused(
    rich_result: Result, tmp_path: Path, place: Path_, value: Any, says: str
) -> None:
    made = json.loads(rich_result.to_json())
    owner: Any = made
    for key in place[:-1]:
        owner = owner[key]
    owner[place[-1]] = value
    (tmp_path / "r.json").write_text(json.dumps(made))
    with pytest.raises(UnusableResult, match=says):
        read_saved(tmp_path / "r.json")


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e999"])
def test_what_is_no_number_is_refused(rich_result: Result, tmp_path: Path, number: str) -> None:
    made = json.loads(rich_result.to_json())
    made["summary"]["step_us"] = "HERE"
    (tmp_path / "r.json").write_text(json.dumps(made).replace('"HERE"', number))
    with pytest.raises(NotACapture, match=r"r\.json is no trace-doctor result"):
        read_saved(tmp_path / "r.json")


@pytest.mark.parametrize("place", ["", "gate", "page", "escaped"])
def test_a_key_that_stands_twice_is_refused(rich_result: Result, tmp_path: Path, place: str) -> None:
    """One reader takes the first of the two, another the last."""
    text = rich_result.to_json().decode()
    second = {"gate": '{"summary": {"x": 0, "x": 0}, ', "escaped": '{"find\\u0069ngs": [], '}.get(
        place, '{"findings": [], '
    )
    text = second + text.lstrip()[1:]
    file = tmp_path / ("r.html" if place == "page" else "r.json")
    file.write_text("<!doctype html>" + embedded(text.encode(), 0) if place == "page" else text)
    with pytest.raises(UnusableResult, match=r"'(findings|summary|x)' stands twice in one object of it"):
        read_saved(file)


def test_a_baseline_that_was_merged_by_hand(tmp_path: Path, rich_result: Result) -> None:
    text = Baseline.of(rich_result).to_json()
    (tmp_path / "b.json").write_text('{"figures": {}, ' + text.lstrip()[1:])
    with pytest.raises(
        UsageError, match=r"b\.json is no baseline: 'figures' stands twice in one object of it"
    ):
        read_baseline(tmp_path / "b.json")


# ---------------------------------------------------------------------- what is not believed


def saved(tmp_path: Path, fix: Fix) -> Fix:
    one = Finding(
        id="TD101-1", code="TD101", name="n", title="t", severity="info", confidence="high", message="m",
        fingerprint="f", fixes=[fix],
    )  # fmt: skip
    path = tmp_path / "r.json"
    path.write_bytes(Result(findings=[one]).to_json())
    return read_saved(path).findings[0].fixes[0]


@pytest.mark.parametrize(
    ("codemod", "claimed", "read"),
    [
        ("zero-grad", "unsafe", "unsafe"),
        ("replace-optimizer", "unsafe", "display"),
        ("gradient-accumulation", "unsafe", "display"),
        ("zero-grad", "display", "display"),
        ("not-yet", "unsafe", "display"),
        (None, "unsafe", "display"),
    ],
)
def test_a_claim_of_safety_only_restricts(
    tmp_path: Path, codemod: str | None, claimed: Any, read: str
) -> None:
    fix = Fix(title="t", kind="patch", safety=claimed, codemod=codemod, diff="--- a\n+++ b\n")
    assert saved(tmp_path, fix).safety == read


@pytest.mark.parametrize(
    ("arguments", "read"),
    [({"fullgraph": True}, "display"), ({"fullgraph": "True"}, "display"), ({"dynamic": True}, "unsafe")],
)
def test_what_people_decide_on_is_never_made_because_a_result_says_so(
    tmp_path: Path, arguments: dict[str, Any], read: str
) -> None:
    fix = Fix(
        title="t",
        kind="patch",
        safety="unsafe",
        codemod="set-call-args",
        params={"callee": "torch.compile", "args": arguments},
    )
    assert saved(tmp_path, fix).safety == read


@pytest.mark.parametrize("schema", [0, -1])
def test_a_schema_that_never_was_is_refused(tmp_path: Path, rich_result: Result, schema: int) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(json.loads(rich_result.to_json()) | {"schema_version": schema}))
    with pytest.raises(UnusableResult, match=f"schema {schema}"):
        read_saved(path)


@pytest.mark.parametrize(
    "says",
    [
        "lists the rule TD[0-9]+ twice",
        "of a capture that it does not list",
        "of a device that its capture does not show",
    ],
)
def test_a_result_that_contradicts_itself_is_refused(tmp_path: Path, rich_result: Result, says: str) -> None:
    made = json.loads(rich_result.to_json())
    if "twice" in says:
        made["outcomes"].append({**made["outcomes"][0], "outcome": "skipped"})
    elif "capture that" in says:
        made["findings"][0]["input"] = 99
    else:
        made["findings"][0]["location"]["device"] = 99
    path = tmp_path / "r.json"
    path.write_text(json.dumps(made))
    with pytest.raises(UnusableResult, match=says):
        verify(path, path)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"steps": [0]}, "do not fit its steps"),
        ({"rows": [{"ranks": [1], "worst": 2, "excess_us": [0, 0]}]}, "do not fit its steps"),
        ({"rows": [{"ranks": [1], "worst": 1, "excess_us": [0, 0]}] * 513}, "more rows"),
        ({"read": 130}, "more ranks or steps"),
    ],
)
def test_a_job_whose_parts_do_not_fit_is_refused(
    tmp_path: Path, job_result: Result, change: dict[str, object], says: str
) -> None:
    made = json.loads(job_result.to_json())
    path = tmp_path / "r.json"
    path.write_text(json.dumps(made))
    assert read_saved(path).jobs == job_result.jobs
    made["jobs"][0] |= change
    path.write_text(json.dumps(made))
    with pytest.raises(UnusableResult, match=says):
        read_saved(path)


def test_a_damaged_result_is_no_capture_that_might_be_analyzed(tmp_path: Path, rich_result: Result) -> None:
    path = tmp_path / "r.json"
    made = json.loads(rich_result.to_json())
    made["findings"][0]["severity"] = "fatal"
    path.write_text(json.dumps(made))
    with pytest.raises(UnusableResult, match="findings"):
        verify(path, path)
    path.write_bytes(replace(rich_result, schema_version=99).to_json())
    with pytest.raises(UnusableResult, match="newer trace-doctor"):
        verify(path, path)


@pytest.mark.parametrize("around", [("<!-- ", " -->"), ("<textarea>", "</textarea>"), ("", "")])
def test_a_page_with_another_result_that_nobody_sees_is_refused(
    tmp_path: Path, rich_result: Result, around: tuple[str, str]
) -> None:
    page = render(rich_result, "html", zoom=False)
    healthy = embedded(replace(rich_result, findings=[]).to_json(), LARGEST)
    file = tmp_path / "report.html"
    file.write_text(page.replace("<body>", f"<body>{around[0]}{healthy}{around[1]}", 1), encoding="utf-8")
    with pytest.raises(NotACapture, match=r"holds 2 trace-doctor results"):
        read_saved(file)


@pytest.mark.parametrize("suffix", [".html", ".json"])
def test_what_is_larger_than_any_result_is_none_and_is_not_read(
    tmp_path: Path, rich_result: Result, suffix: str
) -> None:
    """It may be the user's, and take minutes and all memory to read."""
    file = tmp_path / f"report{suffix}"
    file.write_text(render(rich_result, suffix[1:], zoom=False), encoding="utf-8")
    assert read_saved(file).summary == rich_result.summary
    os.truncate(file, LARGEST + 1)
    assert not is_page_of_ours(file, Result)
    with pytest.raises(NotACapture, match=f"report{suffix}: larger than 256 MiB"):
        read_saved(file)


def test_a_page_that_is_cut_in_its_result_says_so(tmp_path: Path, rich_result: Result) -> None:
    page = render(rich_result, "html", zoom=False)
    file = tmp_path / "report.html"
    file.write_text(page[: page.index('id="result">') + 500], encoding="utf-8")
    with pytest.raises(NotACapture, match=r"report\.html: the page ends in the middle of its"):
        read_saved(file)


def test_what_has_no_name_is_named_all_the_same() -> None:
    with pytest.raises(NotACapture, match=r"\.: (not a regular file|Permission denied)"):
        read_saved(Path("."))


@pytest.mark.parametrize("how", ["packed", "marked", "packed and marked"])
def test_a_result_is_read_as_other_programs_keep_it(tmp_path: Path, how: str) -> None:
    data = (b"\xef\xbb\xbf" if "marked" in how else b"") + Result(incomplete=["x"]).to_json()
    path = tmp_path / "result.any"
    path.write_bytes(gzip.compress(data) if "packed" in how else data)
    assert read_saved(path).incomplete == ["x"]
    saved = saved_result(path)
    assert saved is not None and saved.incomplete == ["x"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda data: data.replace(b'"events": 9', b'"events": NaN'), "JSON is malformed"),
        (lambda data: data.replace(b'"events": 9', b'"events": 1e999'), "out of range"),
        (lambda data: gzip.compress(data)[:-9], "ends early"),
        (lambda data: data[: len(data) // 2], "truncated"),
        (lambda data: sealed("json", data).replace(b'"events": 9', b'"events": 8'), "changed since trace-doctor wrote it"),
    ],
)  # fmt: skip
def test_a_damaged_result_is_not_taken_for_a_damaged_capture(
    tmp_path: Path, change: Callable[[bytes], bytes], why: str
) -> None:
    path = tmp_path / "result.json"
    path.write_bytes(change(Result(inputs=[Input(path="a", kind="trace", events=9)]).to_json()))
    for read in (read_saved, saved_result):
        with pytest.raises(NotACapture, match=why):
            read(path)


def test_a_result_that_is_too_large_is_said_to_be(tmp_path: Path) -> None:
    with (tmp_path / "result.json").open("wb") as file:
        file.write(Result().to_json())
        file.truncate(LARGEST + 1)
    with pytest.raises(NotACapture, match="larger than"):
        saved_result(tmp_path / "result.json")
