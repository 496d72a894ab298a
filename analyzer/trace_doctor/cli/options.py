"""The options that several commands share, each declared once, alone or in a block that a command takes as one value."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer
from typer.core import TyperCommand

from trace_doctor.errors import UsageError

if TYPE_CHECKING:
    from trace_doctor.config import Config

SUFFIXES = {
    "text": ".txt", "html": ".html", "json": ".json", "sarif": ".sarif", "junit": ".xml", "markdown": ".md", "agent": ".md",
}  # fmt: skip
"""Format -> how its files usually end"""


def format_words(incomplete: str) -> list[str]:
    """For the shell: the formats of --output."""
    return [f for f in (*SUFFIXES, "github", "perfetto=") if f.startswith(incomplete)]


def rule_words(incomplete: str) -> list[tuple[str, str]]:
    """For the shell: codes with what they find, or names; of a list with commas the last."""
    from trace_doctor.registry import all_rules

    before, comma, last = incomplete.rpartition(",")
    words = [(w, r.title) for r in all_rules() for w in (r.code, r.name) if last or w == r.code]
    return [(before + comma + w, title) for w, title in words if w.lower().startswith(last.lower())]


def output_option(help: str, **further: Any) -> Any:
    """The option that names the formats and the files of a command."""
    return typer.Option("--output", "--format", "-o", metavar="FORMAT[=PATH]", help=help, **further)


Paths = Annotated[
    list[str],
    typer.Argument(
        metavar="PATH...", help="Traces, snapshots, folders and globs that hold them, or - for stdin."
    ),
]
Source = Annotated[
    Path | None,
    typer.Option(help="Folder of the training script: findings name its lines, fixes become diffs."),
]
Output = Annotated[
    list[str] | None,
    output_option(
        "text, html, json, sarif, junit, github, markdown, agent, or perfetto (needs a PATH); repeatable; at most one "
        "without PATH goes to stdout.",
        autocompletion=format_words,
    ),
]
Findings = Annotated[
    list[str] | None, typer.Option(help="Only these findings: ids (TD101-1), codes, prefixes, names.")
]
ConfigFile = Annotated[
    Path | None, typer.Option("--config", help="Configuration file (default: the nearest one).")
]
Rank = Annotated[int | None, typer.Option(help="Only this rank.")]
Steps = Annotated[
    str | None, typer.Option(metavar="FIRST:LAST", help="Only these steps, the last one excluded.")
]
Device = Annotated[int | None, typer.Option(help="Only this device.")]
NoSource = Annotated[bool, typer.Option("--no-source", help="Do not embed source lines in any output.")]
ShowSkipped = Annotated[
    bool, typer.Option("--show-skipped", help="List skipped rules and what to record for them.")
]
Force = Annotated[
    bool, typer.Option("--force", help="Replace a report file that trace-doctor did not write.")
]
Summaries = Annotated[
    Path | None,
    typer.Option(
        metavar="STORE", help="Folder that keeps a summary of each rank: what it holds is not read again."
    ),
]
RankTimeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS",
        help="A rank that takes longer to read is listed as not read (default: 3600, from 64 ranks on).",
    ),
]
NoZoom = Annotated[bool, typer.Option("--no-zoom", help="HTML without the zoomable panels: a smaller page.")]
AllowDirty = Annotated[
    bool, typer.Option("--allow-dirty", help="Edit even if the git work tree is dirty or missing.")
]


@dataclass(frozen=True)
class Rules:
    """Which rules run, and which of their findings count."""

    select: Annotated[
        list[str] | None,
        typer.Option(
            autocompletion=rule_words,
            help="Run only these rules: codes, prefixes (TD1), names; repeatable, or with commas.",
        ),
    ] = None
    ignore: Annotated[
        list[str] | None, typer.Option(autocompletion=rule_words, help="Do not run these rules.")
    ] = None
    extend_select: Annotated[
        list[str] | None, typer.Option(autocompletion=rule_words, help="Run these rules as well.")
    ] = None
    min_confidence: Annotated[str | None, typer.Option(help="Drop findings below: high, medium or low.")] = (
        None
    )
    min_saving: Annotated[
        str | None, typer.Option(help="Drop findings that save less: a share (0.02) or 2%.")
    ] = None

    @property
    def overrides(self) -> dict[str, Any]:
        """The settings that they are."""
        return dict(vars(self))


@dataclass(frozen=True)
class Coverage:
    """Which ranks are looked at, and how many must be there."""

    rank: Rank = None
    ranks: Annotated[
        str | None,
        typer.Option(
            metavar="N|all", help="Exit 3 if fewer ranks were read. all: the world size in the captures."
        ),
    ] = None
    allow_partial: Annotated[
        bool, typer.Option("--allow-partial", help="Report missing or unread captures without exiting 3.")
    ] = False


@dataclass(frozen=True)
class Setup:
    """Where the settings come from."""

    torch_version: Annotated[str | None, typer.Option(help="torch version that made the captures.")] = None
    config: ConfigFile = None

    def __post_init__(self) -> None:
        if self.torch_version == "":  # `fix` of a saved result and `treat` load no settings of it
            raise UsageError("--torch-version: '' is no version")

    def load(self, *, source: Path | None, **options: Any) -> Config:
        """The settings with what the command line says on top. Raises UsageError for a wrong value."""
        from trace_doctor.config import load_config

        overrides = {name: in_parts(v, name) if isinstance(v, list) else v for name, v in options.items()}
        overrides |= {"torch_version": self.torch_version, "source": str(source) if source else None}
        return load_config(file=self.config, overrides=overrides)


@dataclass(frozen=True)
class Loading:
    """How captures are read."""

    jobs: Annotated[
        int | None, typer.Option(min=1, help="Processes that read captures (default: number of cores).")
    ] = None
    max_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE",
            help="Memory limit: 4GB, 512MB, or 50% of what is available (default: 75%). "
            "A file that needs more is refused.",
        ),
    ] = None
    no_progress: Annotated[bool, typer.Option("--no-progress", help="No progress bar.")] = False

    @property
    def limits(self) -> dict[str, Any]:
        """The settings among them."""
        return {"jobs": self.jobs, "max_memory": self.max_memory}


def expanded(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer reads it: options in the places of their blocks, --quiet and --verbose last."""
    parameters, blocks = [], {}
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        block = parameter.annotation
        if not (isinstance(block, type) and dataclasses.is_dataclass(block)):
            parameters.append(parameter)
            continue
        hints = get_type_hints(block, include_extras=True)
        fields = dataclasses.fields(block)
        blocks[parameter.name] = (block, [f.name for f in fields])
        parameters += [
            parameter.replace(name=f.name, annotation=hints[f.name], default=f.default) for f in fields
        ]
    parameters.sort(key=lambda p: p.name in ("quiet", "verbose"))

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, (block, names) in blocks.items():
            values[name] = block(**{n: values.pop(n) for n in names})
        command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in parameters}
    return run


def in_parts(items: list[str] | None, option: str) -> list[str]:
    """The values of a repeatable option, each of which may hold several with commas. Raises UsageError for one that holds
    none: as if it were not there, it would ask for less than it seems to."""
    if empty := [item for item in items or () if not item.strip(", ")]:
        raise UsageError(f"--{option.replace('_', '-')}: {empty[0]!r} is empty")
    return [part.strip() for item in items or () for part in item.split(",") if part.strip()]


def parse_steps(text: str | None) -> tuple[int, int] | None:
    """[first, last) of `--steps`; None where it was not given. Raises UsageError."""
    if text is None:
        return None
    first, colon, last = text.partition(":")
    try:
        span = (int(first or 0), int(last) if last else (1 << 31) if colon else int(first) + 1)
    except ValueError:
        raise UsageError(f"--steps: {text!r} is not FIRST:LAST") from None
    if span[0] >= span[1]:
        raise UsageError(f"--steps: {text!r} selects no step")
    return span


class Command(TyperCommand):
    """Refuses the empty text for a file or a folder, as an unset variable gives it: it would mean the working folder."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        given, _, _ = self.make_parser(ctx).parse_args(list(args))
        for option in self.get_params(ctx):
            value = given.get(option.name) if option.name and option.type.name == "path" else None
            if value == "" or (isinstance(value, list | tuple) and "" in value):  # one of several
                name = option.opts[-1] if option.opts[-1].startswith("-") else option.human_readable_name
                ctx.fail(f"{name}: '' names no file and no folder.")
        return super().parse_args(ctx, args)
