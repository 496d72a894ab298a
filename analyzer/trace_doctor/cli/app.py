"""All commands, in the order of `--help`."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from trace_doctor import __version__
from trace_doctor.cli import leave_stdout
from trace_doctor.cli.analyze import analyze
from trace_doctor.cli.capture import capture
from trace_doctor.cli.check import check
from trace_doctor.cli.config import config
from trace_doctor.cli.diff import diff
from trace_doctor.cli.fix import fix
from trace_doctor.cli.load import load
from trace_doctor.cli.record import Passing, record
from trace_doctor.cli.report import report
from trace_doctor.cli.rules import rule, rules
from trace_doctor.cli.treat import treat
from trace_doctor.cli.verify import verify


class Commands(TyperGroup):
    """Ends as other programs do when nobody reads on (`| head`): typer would exit 1, which is a verdict of `check`."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            leave_stdout()
            raise typer.Exit(141) from None


app = typer.Typer(
    cls=Commands,
    help="What makes a PyTorch training job slow or memory-hungry, what it costs, and the patch.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command(cls=Passing, context_settings={"allow_interspersed_args": False})(record)
app.command(context_settings={"allow_interspersed_args": False})(treat)
for command in (analyze, check, fix, diff, verify, report, rules, rule, config, capture, load):
    app.command()(command)


def _version(context: typer.Context, wanted: bool) -> None:
    if not wanted:
        return
    typer.echo(f"trace-doctor {__version__}")
    if context.params.get("verbose"):
        from trace_doctor.loaders import _accelerator

        typer.echo(f"decoder of traces: {_accelerator.description()}")
    raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option("--version", "-V", callback=_version, help="Print the version and exit."),
    ] = False,
    verbose: Annotated[
        bool,
        typer.Option("--verbose", "-v", is_eager=True, help="With --version: also the decoder in use."),
    ] = False,
) -> None:
    """What makes a PyTorch training job slow or memory-hungry, what it costs, and the patch."""
