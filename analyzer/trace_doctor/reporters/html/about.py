"""The inputs and what was done to them, how to read the page, the words it uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trace_doctor.model import Column, Ignored, Input, Result, TorchVersion
from trace_doctor.reporters.diagnosis import shortages
from trace_doctor.reporters.html.dom import Child, Html, el
from trace_doctor.reporters.html.glossary import GLOSSARY
from trace_doctor.reporters.html.parts import Columns, Row, data_table, listed, more, plain, section, showing
from trace_doctor.reporters.units import share

_MOST_INPUTS = 24


def render(result: Result) -> Html:
    """The panel that says of which files the report was made, and by which version."""
    warnings = [(i.path, w) for i in result.inputs for w in i.warnings]
    return section(
        "about",
        "About this report",
        el("dl", [[el("dt", name), el("dd", value)] for name, value in _facts(result)], class_="facts"),
        _inputs(result.inputs) if result.inputs else None,
        listed("Warnings", [[el("bdi", path), ": ", warning] for path, warning in warnings]),
        listed("Not read or missing", [el("bdi", s) for s in shortages(result)]),
        _files("Captures not read", result.unread),
        _files("Files not analyzed", [i for i in result.ignored if not i.unread]),
        listed("Limits applied", result.limits),
        _config(result.config) if result.config else None,
    )


def _files(heading: str, files: Sequence[Ignored]) -> list[Child]:
    return [
        listed(heading, [[el("bdi", i.path), ": ", i.reason] for i in files[:_MOST_INPUTS]]),
        showing(min(len(files), _MOST_INPUTS), len(files), "files"),
    ]


def _facts(result: Result) -> list[tuple[str, str]]:
    facts = [
        ("Tool", f"{result.tool.name} {result.tool.version}".strip()),
        ("Schema version", str(result.schema_version)),
    ]
    replay = result.summary.replay
    if replay.base_error is not None:
        facts.append(("Replay of the capture as it is", f"{share(replay.base_error, 2)} off the real window"))
    if replay.unexplained_share is not None:
        facts.append(("Delays the replay cannot explain", share(replay.unexplained_share, 2)))
    facts.append(("Privacy", "made on your machine; this page asks for nothing over any network"))
    return facts


def _inputs(inputs: list[Input]) -> Html:
    columns: Columns = [
        "File",
        "Kind",
        Column("Rank", "count"),
        Column("Events", "count"),
        Column("Steps", "count"),
    ]
    columns += ["Device", "torch", "Recorded"]
    rows: list[Row] = [
        [
            el("bdi", i.path),
            i.kind.replace("_", " ") + (f" ({i.role})" if i.role else ""),
            i.rank,
            i.events,
            i.steps or None,
            i.device_name,
            _version(i.torch_version),
            _recorded(i),
        ]
        for i in inputs[:_MOST_INPUTS]
    ]
    return el(
        "div",
        el("h3", "Inputs"),
        data_table("Inputs", columns, rows, hide_caption=True, of=len(inputs)),
        el("p", _COUNTS, class_="limit"),
    )


_COUNTS = (
    "Events: all that were read of a trace, allocations included; of a snapshot, the entries of its history; of a log, its "
    "records. Steps: those of the analyzed window, warm-up included."
)


def _version(version: TorchVersion) -> str | None:
    if version.min and version.min == version.max:
        span = version.min
    elif version.min and version.max:
        span = f"{version.min} to {version.max}"
    elif version.min or version.max:
        span = f"≥ {version.min}" if version.min else f"≤ {version.max}"
    else:
        return None
    return f"{span} ({version.how})" if version.how else span


def _recorded(source: Input) -> str | None:
    parts = []
    if source.run_steps is not None:
        parts.append(f"steps {source.run_steps[0]:,} to {source.run_steps[1]:,} of the run")
    if source.seconds is not None:
        parts.append(f"{source.seconds[0]:,.2f} s to {source.seconds[1]:,.2f} s")
    if source.kind == "trace":
        flags = {n: getattr(source.recorded, n) for n in ("shapes", "stacks", "memory", "flops", "modules")}
        yes = [n for n, v in flags.items() if v]
        no = [n for n, v in flags.items() if v is False]
        parts += [", ".join(yes), "not: " + ", ".join(no) if no else ""]
    return "; ".join(filter(None, parts)) or None


def _config(config: dict[str, Any]) -> Html:
    rows: list[Row] = [[el("code", name), el("code", value)] for name, value in sorted(_flat(config))]
    table = data_table("Configuration in force", ["Setting", "Value"], rows, hide_caption=True)
    return more("Configuration in force", table)


def _flat(config: dict[str, Any], before: str = "") -> list[tuple[str, str]]:
    flat = []
    for name, value in config.items():
        if isinstance(value, dict):
            flat += _flat(value, f"{before}{name}.")
        else:
            flat.append((f"{before}{name}", plain(value)))
    return flat


def help_panel() -> Html:
    """The panel that explains how to read a report."""
    return section(
        "help",
        "How to read this report",
        el(
            "ol",
            el(
                "li",
                "The strip at the top says how long a step takes, how much of it the GPU works, and what the fixes may save.",
            ),
            el(
                "li",
                "“Step time breakdown” splits that time without remainder. Hatched parts are idle; their name is what the host was doing.",
            ),
            el(
                "li",
                "Start with the first finding. Open it for the evidence, the line of the script and the patch.",
            ),
            el(
                "li",
                "Apply one fix, capture again, and compare: a saving is a prediction until it is measured.",
            ),
            el("li", "Look at the skipped rules: what was not captured is unknown, not healthy."),
        ),
        el("h3", "Words"),
        el(
            "dl",
            [
                el("div", el("dt", word), el("dd", meaning), id=f"term-{key}")
                for key, (word, meaning) in GLOSSARY.items()
            ],
            class_="glossary",
        ),
    )
