"""A configuration is accepted or refused in one line: no value turns the gate off by accident."""

from __future__ import annotations

import dataclasses
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from trace_doctor.config import Settings, load_config
from trace_doctor.config.budget_table import FIGURES, MOST, parse_budgets
from trace_doctor.config.suppress_entry import SuppressEntry
from trace_doctor.errors import UsageError
from trace_doctor.gate.decision import terms_of
from trace_doctor.gate.runs import MEASURES
from trace_doctor.gate.suppressions import Suppressions
from trace_doctor.model import Finding, Location
from trace_doctor.registry import resolve

KEYS = sorted(f.name.replace("_", "-") for f in dataclasses.fields(Settings))
TEXTS = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["5%", "180 ms", "38 GiB", "inf", "nan", "-1", "1e999", "9" * 400, "TD1", "ALL", "", " ", "a\nb"]
    ),
)
SCALARS = st.one_of(
    st.booleans(),
    st.integers(),
    st.integers(min_value=-(2**70), max_value=2**70),
    st.floats(),
    TEXTS,
    st.just(date(2026, 1, 1)),
)
NAMES = st.one_of(
    TEXTS,
    st.sampled_from(
        [
            "TD101",
            "TD1",
            "dataloader-starvation",
            "step_time",
            "gpu-idle-share",
            "noise",
            "aggregate",
            "max",
            "level",
            "max_regression",
            "min_share",
            "TD101 train.py",
            "TD101 ",
            "TD201 train.py:f",
            "TD",
        ]
    ),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(KEYS), VALUES)
@example("budgets", {"step_time": {"max_regression": []}})
@example("budgets", {"noise": float("inf")})
@example("max-memory", "9" * 400)
@example("rules", {"TD101": {"min_share": float("nan")}})
@example("suppress", {"TD101 ": "why"})
def test_any_value_is_accepted_or_refused_in_one_line(key: str, value: Any) -> None:
    try:
        settings = load_config(Path("/"), overrides={key.replace("-", "_"): value}).settings
        terms = terms_of(settings, update=False) if not settings.baseline else None
        Suppressions.of(settings.suppress, None)
    except UsageError as refused:
        assert len(str(refused).splitlines()) == 1
        assert len(str(refused)) < 600
        return
    for limit in terms.budgets.limits if terms else ():
        assert all(0 <= v <= MOST[limit.unit] for v in (limit.at_most, limit.absolute) if v is not None)
        assert limit.relative is None or 0 <= limit.relative <= 10
        assert limit.at_most is not None or limit.compares
    assert 0 <= settings.critical_at <= 1
    assert 0 <= settings.warning_at <= 1
    assert 0 <= settings.min_saving <= 1


def test_each_figure_of_a_budget_is_measured() -> None:
    assert {name: m.unit for name, m in MEASURES.items()} == dict(FIGURES)


@pytest.mark.parametrize(
    ("table", "says"),
    [
        ({"noise": float("inf")}, "from 0 to 20"),
        ({"noise": float("nan")}, "from 0 to 20"),
        ({"noise": -1}, "from 0 to 20"),
        ({"noise": 1e308}, "from 0 to 20"),
        ({"noise": "3"}, "from 0 to 20"),
        ({"step_time": []}, '"180 ms"'),
        ({"step_time": float("inf")}, '"180 ms"'),
        ({"step_time": "5"}, '"180 ms"'),
        ({"step_time": "-5 ms"}, '"180 ms"'),
        ({"step_time": "9" * 400 + " s"}, "7 days"),
        ({"step_time": "1000000 s"}, "7 days"),
        ({"gpu_idle_share": 15}, "1 (100%)"),
        ({"gpu_idle_share": -0.1}, "from 0"),
        ({"gpu_idle_share": True}, '"15%"'),
        ({"gpu_idle_share": "5 %%"}, '"15%"'),
        ({"gpu_idle_share": float("nan")}, '"15%"'),
        ({"TD101": "500%"}, "1 (100%)"),
        ({"peak_reserved": 1e308}, '"38 GiB"'),
        ({"peak_reserved": 2**62}, "1 PiB"),
        ({"peak_reserved": {"max": {}}}, '"38 GiB"'),
        ({"peak_reserved": {}}, "sets no limit"),
        ({"peak_reserved": {"mex": "1 GiB"}}, "did you mean 'max'"),
        ({"step_time": {"max_regression": []}}, "one room or two"),
        ({"step_time": {"max_regression": [["5%"]]}}, '"180 ms"'),
        ({"step_time": {"max_regression": ["5%", "6%"]}}, "two relative"),
        ({"step_time": {"max_regression": ["5%", "1 ms", "2 ms"]}}, "one room or two"),
        ({"step_time": {"max_regression": "99999%"}}, "at most 1000%"),
        ({"step_time": {"max_regression": 0}}, '"180 ms"'),
        ({"step_time": "1 s", "step-time": "2 s"}, "two budgets"),
        ({"TD101": "1%", "dataloader-starvation": "2%"}, "two budgets"),
        ({"aggregate": ["median"]}, "median, optimistic, pessimistic"),
    ],
)  # fmt: skip
def test_budgets_are_sensible_quantities(table: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match="budgets") as refused:
        parse_budgets(table)
    assert says in str(refused.value)


def test_small_and_exact_quantities_are_taken() -> None:
    made = parse_budgets(
        {"gpu_idle_share": 1e-05, "peak_reserved": 2**40, "step_time": {"max_regression": "0%"}}
    )
    assert {limit.name: limit.at_most for limit in made.limits} == {
        "gpu_idle_share": 1e-05, "peak_reserved": 2**40, "step_time": None,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("pyproject.toml", "[tool.trace-doctr]\nfail-on = 'never'", r"\[tool.trace-doctr\] is written"),
        ("pyproject.toml", "[tool.tracedoctor]\nfail-on = 'never'", r"is written \[tool.trace-doctor\]"),
        ("pyproject.toml", "[tool]\ntrace_doctor = {fail-on = 'never'}", r"is written \[tool.trace-doctor\]"),
        ("pyproject.toml", "[tool.'trace-doctor'.budget]\nstep_time = '1 s'", "did you mean 'budgets'"),
        ("pyproject.toml", "[tool.trace-doctor.suppres]\nTD101 = 'x'", "did you mean 'suppress'"),
        ("trace-doctor.toml", "fail-on = 'never'\n[tool.trace-doctor]\n", "outside of"),
        ("trace-doctor.toml", "[trace-doctor]\nfail-on = 'never'", "unknown key 'trace-doctor'"),
        ("trace-doctor.toml", "fail-on = 'never'\nfail_on = 'info'", "twice"),
        ("trace-doctor.toml", "[budgets]\nstep_tme = '1 s'", "did you mean 'step_time'"),
        ("trace-doctor.toml", "[suppress]\nTD999 = 'x'", "no rule 'TD999'"),
        ("trace-doctor.toml", "[rules.TD101]\nmin_share = -1", "negative"),
        ("trace-doctor.toml", "[rules.TD101]\nmin_share = 7", "share from 0 to 1"),
        ("trace-doctor.toml", "rules.TD101.min_share = 0.1\nrules.dataloader-starvation.min_share = 1.0", "the same rule"),
        ("trace-doctor.toml", "critical-at = 1e9", "share from 0 to 1"),
        ("trace-doctor.toml", "warning-at = '400%'", "share from 0 to 1"),
        ("trace-doctor.toml", "min-saving = 2", "share from 0 to 1"),
        ("trace-doctor.toml", "select = ['']", "empty text"),
        ("trace-doctor.toml", "loader-frames = [' ']", "empty text"),
        ("trace-doctor.toml", "ranks = 0", "from 1 on"),
        ("trace-doctor.toml", "ranks = 'every'", "or all"),
        ("trace-doctor.toml", "max-memory = '0.0001%'\n[budgets]\nnoise = inf", "max-memory|noise"),
    ],
)  # fmt: skip
def test_mistakes_are_named(tmp_path: Path, name: str, text: str, says: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match=says):
        load_config(tmp_path)


def test_a_file_that_was_asked_for_speaks_of_us(tmp_path: Path) -> None:
    other = tmp_path / "ci.toml"
    other.write_text("[project]\nname = 'x'\n[tool.ruff]\n")
    with pytest.raises(UsageError, match="no table"):
        load_config(tmp_path, file=other)
    other.write_text("[project]\nname = 'x'\n[tool.trace-doctor]\nranks = 8\n")
    assert load_config(tmp_path, file=other).settings.ranks == "8"


@pytest.mark.parametrize(
    "text",
    [
        "[project]\ndependencies = ['trace-doctor']",
        "[tool.tracer]\n",
        "# tool.trace doctor\n[broken",
        "[tool.traced]",
    ],
)
def test_files_of_others_are_left_alone(tmp_path: Path, text: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    assert load_config(tmp_path).origins["select"] == "default"


# ---------------------------------------------------------------------- suppressions


@pytest.mark.parametrize(
    "key",
    ["", " ", "ALL", "T", "TD", "TD101 ", " TD101", " train.py", "TD101 :train", "TD101 train.py:", "TD101 train.py:12",
     "TD101 train.py:.", "TD101 train.py:<locals>", "TD101 ../train.py", "TD101 src/", "TD101 /", "TD101 .", "TD101 ./",
     "TD101\ttrain.py", "train.py", "TD101 a/../b.py"],
)  # fmt: skip
def test_an_entry_that_would_speak_of_too_much_is_refused(key: str) -> None:
    with pytest.raises(UsageError) as refused:
        SuppressEntry.parse(key, "why")
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("place", "file", "function", "means"),
    [
        ("train.py", "src/train.py", "f", True),
        ("train.py", "pretrain.py", "f", False),
        ("train.py", "train.py", "f", True),
        ("train.py", "train.py/other.py", "f", False),
        ("./train.py", "src/train.py", "f", True),
        ("src/train.py", "a/src/train.py", "f", True),
        ("src/train.py", "a/nosrc/train.py", "f", False),
        ("src/train.py", "train.py", "f", False),
        ("src\\train.py", "a/src/train.py", "f", True),
        ("src/train.py", "C:\\a\\src\\train.py", "f", True),
        ("C:\\a\\train.py", "C:\\a\\train.py", "f", True),
        ("C:\\a\\train.py:f", "C:\\a\\train.py", "f", True),
        ("/a/train.py", "/a/train.py", "f", True),
        ("/a/train.py", "/b/a/train.py", "f", False),
        ("Train.py", "train.py", "f", False),
        ("train.py", None, "f", False),
        ("train.py:f", "train.py", "f", True),
        ("train.py:f", "train.py", "A.f", True),
        ("train.py:A.f", "train.py", "f", False),
        ("train.py:A.f", "train.py", "B.f", False),
        ("train.py:f", "train.py", "ff", False),
        ("train.py:f", "train.py", None, False),
        ("train.py:g.<locals>.f", "train.py", "g.f", True),
    ],
)
def test_files_and_functions_are_compared_by_their_parts(
    place: str, file: str | None, function: str | None, means: bool
) -> None:
    finding = Finding(
        id="TD201-1", code="TD201", name="host-device-sync", title="", severity="warning", confidence="high", message="",
        fingerprint="f", location=Location(file=file, line=3, function=function),
    )  # fmt: skip
    assert SuppressEntry.parse(f"TD201 {place}", "why").covers(finding) is means
    assert not SuppressEntry.parse(f"TD101 {place}", "why").covers(finding)


@pytest.mark.parametrize("comment", ["ignore[]", "ignore[ ]", "ignore[,]", "ignore[ALL]", "ignore[TD]", "ignore[T]", "ignore",
                                     "ignore[TD201", "ignore[TD201, TD999]", "ignore[nothing]"])  # fmt: skip
def test_a_comment_that_names_no_rule_silences_nothing_and_is_told(tmp_path: Path, comment: str) -> None:
    (tmp_path / "train.py").write_text(f"x = y.item()  # trace-doctor: {comment} why\n")
    made = Suppressions.of({}, tmp_path)
    assert not made.comments
    assert [n.split(" ")[0] for n in made.notes] == ["train.py:1:"]


def test_no_selector_is_no_rule() -> None:
    with pytest.raises(UsageError):
        resolve("nothing")
