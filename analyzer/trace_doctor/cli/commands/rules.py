"""`trace-doctor rules` and `trace-doctor rule CODE`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from trace_doctor.cli.options import ConfigFile, rule_words
from trace_doctor.errors import no_commands, printable, unbroken

if TYPE_CHECKING:
    from trace_doctor.rule import Rule

Format = Annotated[str, typer.Option("--output", "--format", "-o", help="text or json.")]


def rules(output: Format = "text") -> None:
    """List all rules."""
    from trace_doctor.registry import all_rules

    _check_output(output)
    if output == "json":
        typer.echo(_json(all_rules()))
        return
    for r in all_rules():
        typer.echo(unbroken(f"{r.code}  {r.name:24}  {r.title}"))


def rule(
    code: Annotated[
        str | None, typer.Argument(metavar="CODE", help="Code or name of a rule.", autocompletion=rule_words)
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="Every rule.")] = False,
    output: Format = "text",
    config: ConfigFile = None,
) -> None:
    """Explain a rule: what it checks, why that matters, its thresholds in force, its fixes."""
    from trace_doctor.cli.rule_page import page
    from trace_doctor.config import load_config
    from trace_doctor.errors import UsageError
    from trace_doctor.registry import all_rules, resolve

    _check_output(output)
    if code is None and not all_:
        raise UsageError("name a rule (trace-doctor rules lists them) or use --all")
    rules = all_rules() if all_ or code is None else resolve(code)
    settings = load_config(file=config)
    if output == "json":
        typer.echo(_json(rules))
        return
    typer.echo(printable("\n\n".join(page(r, settings.rule(r)) for r in rules)))


def _check_output(output: str) -> None:
    from trace_doctor.errors import UsageError

    if output not in ("text", "json"):
        raise UsageError(f"--output: {output!r} is not text or json")


def _json(rules: Iterable[type[Rule]]) -> str:
    from trace_doctor.cli.rule_page import facts

    return no_commands(json.dumps([facts(r) for r in rules], indent=2, sort_keys=True))
