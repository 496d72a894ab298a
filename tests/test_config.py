from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from trace_doctor.config import OTHER_VARIABLES, load_config
from trace_doctor.errors import UsageError
from trace_doctor.registry import resolve


def write(folder: Path, text: str, name: str = "trace-doctor.toml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def test_each_layer_wins_over_the_one_below(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 'fail-on = "info"\nignore = ["TD4"]\nmin-saving = "2%"\n')
    monkeypatch.setenv("TRACE_DOCTOR_IGNORE", "TD5, TD2")
    config = load_config(tmp_path, overrides={"fail_on": "critical", "select": None})
    assert config.settings.fail_on == "critical"
    assert config.settings.ignore == ["TD5", "TD2"]
    assert config.settings.min_saving == 0.02
    assert config.origins["fail_on"] == "command line"
    assert config.origins["ignore"] == "environment"
    assert config.origins["min_saving"] == "trace-doctor.toml"
    assert config.origins["select"] == "default"


def test_the_nearest_file_upwards_that_speaks_of_us(tmp_path: Path) -> None:
    write(tmp_path, '[tool.trace-doctor]\nfail-on = "never"\n', "pyproject.toml")
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    write(tmp_path / "a", "[project]\nname = 'x'\n", "pyproject.toml")
    assert load_config(inner).settings.fail_on == "never"


@pytest.mark.skipif(not hasattr(os, "getuid") or os.getuid() != 0, reason="only root can give files away")
def test_settings_of_somebody_else_above_are_not_followed(tmp_path: Path) -> None:
    file = write(tmp_path, 'fail-on = "never"\n')
    inner = tmp_path / "a"
    inner.mkdir()
    os.chown(file, 1234, 1234)
    with pytest.raises(
        UsageError, match=r"trace-doctor\.toml belongs to another user and is not followed; --config"
    ):
        load_config(inner)
    assert load_config(inner, file).settings.fail_on == "never"
    os.chown(inner, 1234, 1234)  # the checkout of a user, in which a container's root works
    assert load_config(inner).settings.fail_on == "never"


@pytest.mark.parametrize("name", ["trace-doctor.toml", "pyproject.toml"])
@pytest.mark.parametrize(
    "put", [lambda p: p.symlink_to("gone"), Path.mkdir, os.mkfifo], ids=["link", "folder", "FIFO"]
)
def test_what_is_no_file_is_a_mistake_and_not_skipped(
    tmp_path: Path, name: str, put: Callable[[Path], None]
) -> None:
    write(tmp_path, "")
    inner = tmp_path / "a"
    inner.mkdir()
    put(inner / name)
    with pytest.raises(UsageError, match=rf"^{name}: cannot be read \(.+\)$"):
        load_config(inner)


def test_thresholds_reach_the_rule(tmp_path: Path) -> None:
    write(tmp_path, "[rules.TD101]\nmin_share = 0.2\n")
    rule = load_config(tmp_path).rule(resolve("TD101")[0])
    assert rule.thresholds()["min_share"] == 0.2


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("igmore = ['TD1']", "did you mean 'ignore'"),
        ("ignore = 'TD1'", "list of text"),
        ("fail-on = 'high'", "not 'high'"),
        ("[tool.trace_doctor]\nselect = ['TD1']", r"written \[tool.trace-doctor\]"),
        ("torch-version = 'new'", "like 2.9"),
        ("min-saving = 'lots'", "no number"),
        ("select = ['TD999']", "no rule 'TD999'"),
        ("[rules.TD101]\nmin_shar = 0.1", "did you mean 'min_share'"),
        ("[rules.TD101]\nmin_share = 'x'", "must be a number"),
        ("[rules.td101]\nmin_share = 0.5", "rules.td101 is written rules.TD101"),
        ("[severity]\nTD101 = 'bad'", "must be one of"),
        ("[severity]\nTD1 = 'info'", "severity.TD1 must name one rule"),
        ("[severity]\ntd101 = 'info'", "severity.td101 must name one rule"),
        ("ignore = [", "trace-doctor.toml"),
        ("budgets = " + "[" * 5_000, "nested too deeply"),
        (f"[{'a.' * 100_000}a]", "no configuration file"),
        ("#" + "x\n" * 200_000, "no configuration file is larger"),
        ("jobs = " + "9" * 9_000, "digits"),
        ("jobs = 0x" + "f" * 9_000, "must be a whole number"),
        ("jobs = nan", "must be a whole number"),
        ("jobs = inf", "must be a whole number"),
        ("jobs = -5", "must not be negative"),
        ("jobs = 1.5", "must be a whole number"),
        ("warning-at = 0.5\ncritical-at = 0.1", r"warning-at \(0.5\) must not be above critical-at \(0.1\)"),
        ("min-saving = nan", "must be a number"),
        ("min-saving = 'nan'", "no number"),
        ("device-memory = 1e300", "must be a whole number"),
        ("select = [1]", "list of text"),
        ("tool = 5", "must be a table"),
        ("[tool]\ntrace-doctor = 5", "must be a table"),
        ("[rules.TD101]\nmin_share = nan", "must be a number"),
        ('source = "\\u0000"', "NUL"),
        ('output = ["html=\\u0000"]', "NUL"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, text: str, says: str) -> None:
    write(tmp_path, text)
    with pytest.raises(UsageError, match=says):
        load_config(tmp_path)


STRICT = 'fail-on = "info"\n'
OTHER_PLACES = [
    ("[[tool]]\n[tool.trace-doctor]\n" + STRICT, r"\[tool.trace-doctor\] must be a table"),
    ('tool = [{ "trace-doctor" = { fail-on = "info" } }]', r"\[tool.trace-doctor\] must be a table"),
    ('["tool.trace-doctor"]\n' + STRICT, r'\["tool.trace-doctor"\] is written \[tool.trace-doctor\]'),
    ("[trace-doctor]\n" + STRICT, r"\[trace-doctor\] is written"),
    ("[tools.trace-doctor]\n" + STRICT, r"\[tools.trace-doctor\] is written"),
    ("[[tool.x]]\n[tool.x.trace_doctor]\n" + STRICT, r"\[tool.x.trace_doctor\] is written"),
    ("[tool.trace.doctor]\n" + STRICT, r"\[tool.trace.doctor\] is written"),
    ('[tool."trace\u2010doctor"]\n' + STRICT, r'\[tool."trace\u2010doctor"\] is written'),
    ("a = = 1\n[tool]\ntrace-doctor." + STRICT, "at line 1"),
    (f"{STRICT}[tool.trace-doctor]\njobs = 1", "'fail-on' stands outside"),
]


@pytest.mark.parametrize(("text", "says"), OTHER_PLACES)
def test_settings_in_another_place_are_a_mistake_and_not_the_default(
    tmp_path: Path, text: str, says: str
) -> None:
    write(tmp_path, text, "pyproject.toml")
    with pytest.raises(UsageError, match=says):
        load_config(tmp_path)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "utf-8-sig"])
def test_a_file_in_another_encoding_is_a_mistake(tmp_path: Path, encoding: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.trace-doctor]\n{STRICT}", encoding=encoding)
    with pytest.raises(UsageError, match=r"^pyproject\.toml: [^\n]+$"):
        load_config(tmp_path)


def test_a_table_is_known_by_what_the_toml_says(tmp_path: Path) -> None:
    write(tmp_path, '[tool."trace\\u002ddoctor"]\n' + STRICT, "pyproject.toml")
    inner = tmp_path / "a"
    inner.mkdir()
    mentions = "# [tool.trace-doctor]\n[tool.uv.sources]\ntrace-doctor = { path = '../x' }\n"
    mentions += "[tool.poetry.dependencies.trace-doctor]\nsource = 'mirror'\n"
    write(inner, mentions, "pyproject.toml")
    assert load_config(inner).settings.fail_on == "info"


def test_our_own_file_holds_our_table(tmp_path: Path) -> None:
    write(tmp_path, "[tool.other]\n" + STRICT)
    with pytest.raises(UsageError, match="has no table"):
        load_config(tmp_path)


@pytest.mark.parametrize(
    ("variable", "says"),
    [
        ("FAILON", "unknown variable 'TRACE_DOCTOR_FAILON'; did you mean 'FAIL_ON'"),
        ("EXIT_ZERO", "unknown variable"),
        ("BUDGETS", "budgets is a table"),
        ("REQUIRE", "TRACE_DOCTOR_REQUIRE: ',' is empty"),
    ],
)
def test_a_variable_that_would_be_ignored_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, says: str
) -> None:
    monkeypatch.setenv(f"TRACE_DOCTOR_{variable}", ",")
    with pytest.raises(UsageError, match=says):
        load_config(tmp_path)


def test_variables_that_are_no_settings_are_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in OTHER_VARIABLES:
        monkeypatch.setenv(name, "python")
    load_config(tmp_path)


def test_an_empty_variable_takes_nothing_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, 'require = ["TD101"]\n')
    monkeypatch.setenv("TRACE_DOCTOR_REQUIRE", "")
    assert load_config(tmp_path).settings.require == ["TD101"]


def test_two_files_of_one_folder_are_a_mistake(tmp_path: Path) -> None:
    """Neither is nearer: a budget in the one would be dropped for the other."""
    write(tmp_path, "jobs = 1\n", "trace-doctor.toml")
    write(tmp_path, "[project]\nname = 'x'\n", "pyproject.toml")
    assert load_config(tmp_path).settings.jobs == 1
    write(tmp_path, '[tool.trace-doctor.budgets]\nstep_time = "1 ms"\n', "pyproject.toml")
    with pytest.raises(UsageError, match="both hold settings"):
        load_config(tmp_path)
    assert load_config(tmp_path, tmp_path / "trace-doctor.toml").settings.jobs == 1
