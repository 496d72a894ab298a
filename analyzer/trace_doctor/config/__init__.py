"""Settings and where each comes from: command line > environment > file > default."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import math
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trace_doctor.config.budget_table import parse_budgets, shown
from trace_doctor.config.our_table import our_table, speaks_of_us
from trace_doctor.config.suppress_entry import SuppressEntry
from trace_doctor.errors import UsageError
from trace_doctor.files import open_regular
from trace_doctor.memory_limit import memory_limit
from trace_doctor.registry import choose, resolve
from trace_doctor.rule import Rule

SEVERITIES = ("critical", "warning", "info")
CONFIDENCES = ("high", "medium", "low")
FILES = ("trace-doctor.toml", "pyproject.toml")
_PREFIX = "TRACE_DOCTOR_"
OTHER_VARIABLES = frozenset({"TRACE_DOCTOR_DECODER", "TRACE_DOCTOR_RECORD", "TRACE_DOCTOR_CAPTURES"})
"""Variables of ours that are no settings: of the decoder, of a recorded script, of our benchmarks"""
_HUGE = 1 << 62
MAX_BYTES, MAX_LINE = 256 << 10, 10_000
"""Of a configuration file. Python's reader takes minutes over a key of a hundred thousand parts."""


def _setting(default: Any, doc: str) -> Any:
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata={"doc": doc})
    return field(default=default, metadata={"doc": doc})


@dataclass(frozen=True)
class Settings:
    """Everything that can be set. A key in a file is the field's name with dashes."""

    select: list[str] = _setting([], "rules to run: codes, prefixes, names (default: all)")
    ignore: list[str] = _setting([], "rules not to run")
    extend_select: list[str] = _setting([], "rules to run in addition to the selected")
    fail_on: str = _setting("warning", "`check` fails at this severity: critical, warning, info, never")
    require: list[str] = _setting([], "rules that `check` must not skip")
    ranks: str = _setting("", "ranks that `check`, `verify` and `diff` expect: a number, or all of the job")
    baseline: str = _setting("", "file of `check --baseline`")
    budgets: dict[str, Any] = _setting({}, "what `check` allows each figure and rule: [in CI](ci.md)")
    suppress: dict[str, str] = _setting({}, "findings to silence, with the reason: [in CI](ci.md)")
    min_confidence: str = _setting("low", "drop findings below: high, medium, low")
    min_saving: float = _setting(
        0.0, "drop findings whose saving is a smaller share of the step or of the peak"
    )
    output: list[str] = _setting([], "FORMAT or FORMAT=PATH, as --output")
    source: str = _setting("", "folder of the training script")
    torch_version: str = _setting("", "torch version that made the captures, when they do not tell")
    device_memory: int = _setting(0, "bytes of the device, where no file says it")
    jobs: int = _setting(0, "processes that read captures (0: as many as there are cores)")
    max_memory: str = _setting(
        "", "memory to use at most: 4GB, 512MB, or a share of what is available (default: 75%)"
    )
    loader_frames: list[str] = _setting([], "Python frames that load data though they are no DataLoader")
    loader_annotations: list[str] = _setting([], "annotations that load data")
    critical_at: float = _setting(0.10, "share of the step or of the peak from which a finding is critical")
    warning_at: float = _setting(0.03, "share of the step or of the peak from which a finding is a warning")
    severity: dict[str, str] = _setting({}, "severity by rule: critical, warning, info")
    rules: dict[str, dict[str, Any]] = _setting({}, "thresholds by rule")

    def chosen(self) -> list[type[Rule]]:
        """The rules to run."""
        return choose(self.select, self.ignore, self.extend_select)

    def threshold_overrides(self, rule: type[Rule]) -> dict[str, Any]:
        """The thresholds set for a rule, by name; what is set by its code wins over its name."""
        return {**self.rules.get(rule.name, {}), **self.rules.get(rule.code, {})}


HIDING = ("select", "ignore", "min_confidence", "min_saving", "rules")
"""settings by which a finding is not there at all; what is suppressed a result holds, and a note it shows"""


@dataclass(frozen=True)
class Config:
    """Settings together with the origin of each value ("default", "trace-doctor.toml", "--select" ...)."""

    settings: Settings
    origins: Mapping[str, str]
    folders: Mapping[str, Path] = field(default_factory=dict)
    """of the values that a file holds: its folder. A file may be of a repository that somebody else wrote"""
    file: Path | None = None
    """that was read, named or found"""

    def hiding_nothing(self) -> Config | None:
        """The same without the settings of `HIDING`; None where none of them is set."""
        plain = Settings()
        settings = dataclasses.replace(self.settings, **{name: getattr(plain, name) for name in HIDING})
        return None if settings == self.settings else dataclasses.replace(self, settings=settings)

    def rule(self, rule: type[Rule]) -> Rule:
        """The rule with the thresholds in force."""
        return rule(**self.settings.threshold_overrides(rule))


def defaults(**given: Any) -> Config:
    """A configuration of defaults and these settings alone: no file and no environment is read."""
    values = {k: _checked(k, v, "argument") for k, v in given.items()}
    origins = {f.name: "argument" if values.get(f.name) else "default" for f in dataclasses.fields(Settings)}
    settings = Settings(**values)
    _check_rules(settings)
    return Config(settings, origins)


def load_config(
    start: Path | None = None, file: Path | None = None, overrides: Mapping[str, Any] | None = None
) -> Config:
    """Reads the nearest configuration file from `start` upwards (or `file`), the environment and the overrides (None
    means "not given"). Raises UsageError for an unknown key or a wrong value."""
    values: dict[str, Any] = {}
    origins = {f.name: "default" for f in dataclasses.fields(Settings)}
    folders: dict[str, Path] = {}
    path = file if file is not None else _nearest_file(start or Path.cwd())
    in_file = _from_file(path, asked_for=file is not None) if path is not None else {}
    for origin, layer in (
        (path.name if path is not None else "default", in_file),
        ("environment", _from_environment()),
        ("command line", {k: v for k, v in (overrides or {}).items() if v is not None and v != []}),
    ):
        for key, value in layer.items():
            values[key] = _checked(key, value, origin)
            origins[key] = origin
            folders.pop(key, None)
            if path is not None and layer is in_file:
                folders[key] = path.parent
    settings = Settings(**values)
    _check_rules(settings)
    return Config(settings, origins, folders, path)


def _nearest_file(start: Path) -> Path | None:
    folders = [start.resolve(), *start.resolve().parents]
    nearest = next((own for d in folders if (own := [d / n for n in FILES if _speaks_of_us(d / n)])), [])
    if len(nearest) > 1:  # neither is nearer, and the limits of the other would be gone unsaid
        raise UsageError(f"{' and '.join(FILES)} of {nearest[0].parent} both hold settings: keep one of them")
    for path in nearest:
        _check_owner(path, folders[0])
    return nearest[0] if nearest else None


def _check_owner(path: Path, start: Path) -> None:
    """Raises UsageError for settings of somebody else above the user's files, as in `/tmp`: they could let every check pass.
    Those of who owns the working folder are meant, as where a container's root works on a checkout."""
    if not hasattr(os, "getuid"):
        return
    with contextlib.suppress(OSError):  # what cannot be looked at is said where it is read
        if path.stat().st_uid not in (os.getuid(), 0, start.stat().st_uid):
            raise UsageError(
                f"{path} belongs to another user and is not followed; --config {path} uses it all the same"
            )


def _from_file(path: Path, *, asked_for: bool) -> dict[str, Any]:
    if asked_for and not path.is_file():
        raise UsageError(f"no configuration file {path}")
    values = {}
    required = asked_for or path.name == "trace-doctor.toml"
    for key, value in our_table(path.name, _bytes(path), _keys(), required=required).items():
        if (plain := key.replace("-", "_")) in values:
            raise UsageError(f"{path.name}: {_dashed(plain)} is there twice, with - and with _")
        values[plain] = value
    return values


def _speaks_of_us(path: Path) -> bool:
    """A file of ours, or a pyproject.toml with settings of ours. Raises UsageError where such a name is there and is no
    file, for what it would say is not known."""
    if not os.path.lexists(path) or path.name != "pyproject.toml":
        return os.path.lexists(path)
    return speaks_of_us(_bytes(path), _keys())


def _bytes(path: Path) -> bytes:
    try:
        with open_regular(path) as file:
            data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path.name}: cannot be read ({error.strerror or error})") from None
    if len(data) > MAX_BYTES or max(map(len, data.split(b"\n"))) > MAX_LINE:
        raise UsageError(
            f"{path.name}: no configuration file is larger than {MAX_BYTES >> 10} KB or has lines of more than "
            f"{MAX_LINE} characters"
        )
    return data


def _keys() -> set[str]:
    return {_dashed(f.name) for f in dataclasses.fields(Settings)}


def _from_environment() -> dict[str, Any]:
    values: dict[str, Any] = {}
    _check_variables(os.environ)
    for f in dataclasses.fields(Settings):
        text = os.environ.get(_variable(f.name))
        default = getattr(Settings(), f.name)
        if text is None or isinstance(default, dict):
            continue
        if isinstance(default, list):
            parts = [part.strip() for part in text.split(",") if part.strip()]
            if text.strip() and not parts:
                raise UsageError(f"{_variable(f.name)}: {shown(text)} is empty")
            if parts:
                values[f.name] = parts
        elif isinstance(default, int | float):
            values[f.name] = _number(f.name, text)
        else:
            values[f.name] = text
    return values


def _check_variables(environment: Iterable[str]) -> None:
    """Raises UsageError for a variable of ours that nothing reads."""
    tables = {
        _variable(f.name): f.name
        for f in dataclasses.fields(Settings)
        if isinstance(getattr(Settings(), f.name), dict)
    }
    settings = {_variable(f.name) for f in dataclasses.fields(Settings)} - tables.keys()
    for name in sorted(n for n in environment if n.startswith(_PREFIX)):
        if name in tables:
            raise UsageError(f"{name}: {tables[name]} is a table, which only a configuration file can hold")
        if name not in settings | OTHER_VARIABLES:
            raise UsageError(
                f"environment: unknown variable {shown(name)}"
                + _nearest(name[len(_PREFIX) :], (s[len(_PREFIX) :] for s in settings))
            )


def _variable(key: str) -> str:
    return f"{_PREFIX}{key.upper()}"


def _number(key: str, text: str) -> float:
    try:
        number = float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise UsageError(f"{key.replace('_', '-')}: {shown(text)} is no number")
    return number


def _checked(key: str, value: Any, origin: str) -> Any:
    fields = {f.name: getattr(Settings(), f.name) for f in dataclasses.fields(Settings)}
    if key not in fields:
        raise UsageError(
            f"{origin}: unknown key {shown(_dashed(key))}" + _nearest(_dashed(key), map(_dashed, fields))
        )
    default = fields[key]
    if isinstance(default, float) and isinstance(value, str):
        value = _number(key, value)
    if key == "ranks" and type(value) is int:
        value = str(value)
    value = _as_number(value, default)
    if type(value) is not type(default) or (
        isinstance(value, list) and not all(isinstance(item, str) for item in value)
    ):
        raise UsageError(f"{origin}: {_dashed(key)} must be a {_plain(default)}")
    if isinstance(value, int | float) and value < 0:
        raise UsageError(f"{origin}: {_dashed(key)} must not be negative")
    if isinstance(value, float) and value > 1:  # all of them are shares
        raise UsageError(f"{origin}: {_dashed(key)} must be a share from 0 to 1")
    texts = [value] if isinstance(value, str) else value if isinstance(value, list) else []
    if any("\0" in text for text in texts):
        raise UsageError(f"{origin}: {_dashed(key)} holds a NUL character")
    if isinstance(value, list) and not all(text.strip() for text in value):
        raise UsageError(f"{origin}: {_dashed(key)} holds an empty text")
    allowed = {"fail_on": (*SEVERITIES, "never"), "min_confidence": CONFIDENCES}.get(key)
    if allowed and value not in allowed:
        raise UsageError(f"{origin}: {_dashed(key)} must be one of {', '.join(allowed)}, not {shown(value)}")
    if key == "torch_version" and value and not re.match(r"v?[0-9]{1,4}\.[0-9]{1,4}(?![0-9])", value):
        raise UsageError(f"{origin}: torch-version must be like 2.9, not {shown(value)}")
    if (
        key == "ranks"
        and (value or origin == "command line")
        and not (value == "all" or re.fullmatch(r"[1-9][0-9]{0,6}", value))
    ):
        raise UsageError(f"{origin}: ranks must be a number from 1 on, or all, not {shown(value)}")
    if key == "max_memory":
        memory_limit(value)
    return value


def _as_number(value: Any, default: Any) -> Any:
    """A finite number as the kind that is wanted; anything else as it is. TOML has infinities and huge integers."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return value
    if not isinstance(default, int | float) or not abs(value) < _HUGE:
        return None if isinstance(default, int | float) else value
    return type(default)(value) if isinstance(default, float) or value == int(value) else None


def _plain(default: Any) -> str:
    names = {list: "list of text", dict: "table", int: "whole number", float: "number"}
    return names.get(type(default), "text")


def _nearest(key: str, known: Iterable[str]) -> str:
    near = difflib.get_close_matches(key[:60], list(known), n=1, cutoff=0.55)
    return f"; did you mean {near[0]!r}?" if near else ""


def _dashed(key: str) -> str:
    """A setting as it is written in a file."""
    return key.replace("_", "-")


def _check_rules(settings: Settings) -> None:
    """What names rules or has a shape of its own is checked here, so that a typo fails before a long analysis."""
    parse_budgets(settings.budgets)
    if settings.warning_at > settings.critical_at:
        raise UsageError(
            f"warning-at ({settings.warning_at:g}) must not be above critical-at ({settings.critical_at:g})"
        )
    for key, reason in settings.suppress.items():
        SuppressEntry.parse(key, reason)
    for selector in [*settings.select, *settings.ignore, *settings.extend_select, *settings.require]:
        resolve(selector)
    for key, level in settings.severity.items():
        if key not in {named for rule in resolve(key) for named in (rule.code, rule.name)}:
            raise UsageError(f"severity.{key} must name one rule, by its code or its name")
        if level not in SEVERITIES:
            raise UsageError(f"severity.{key} must be one of {', '.join(SEVERITIES)}")
    tables: dict[type[Rule], str] = {}
    for key, table in settings.rules.items():
        rule = resolve(key)
        if len(rule) != 1 or not isinstance(table, dict):
            raise UsageError(f"rules.{key} must be the table of one rule")
        if key not in (rule[0].code, rule[0].name):  # nothing would look there
            raise UsageError(f"rules.{key} is written rules.{rule[0].code}")
        if (other := tables.setdefault(rule[0], key)) != key:
            raise UsageError(f"rules.{key}: the same rule as rules.{other}")
        for name, value in table.items():
            _check_threshold(rule[0], f"rules.{key}", name, value)


def _check_threshold(rule: type[Rule], where: str, name: str, value: Any) -> None:
    known = rule.known_thresholds
    if name not in known:
        raise UsageError(f"{where}: unknown threshold {shown(name)}" + _nearest(name, known))
    default = known[name].default
    if not isinstance(default, int | float):
        if type(value) is not type(default):
            raise UsageError(f"{where}.{name} must be a {_plain(default)}")
    elif isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < _HUGE:
        raise UsageError(f"{where}.{name} must be a {_plain(default)}")
    elif value < 0:
        raise UsageError(f"{where}.{name} must not be negative")
    elif known[name].unit == "share" and 0 <= default <= 1 and value > 1:
        raise UsageError(f"{where}.{name} must be a share from 0 to 1")
