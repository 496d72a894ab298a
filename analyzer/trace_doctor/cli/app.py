"""All commands, in the order of `--help`."""

from __future__ import annotations

import os
import shlex
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from trace_doctor.cli.options import SUFFIXES, Command, expanded
from trace_doctor.cli.process import interrupted, leave_stdout
from trace_doctor.errors import one_line, unbroken
from trace_doctor.version import VERSION

COMMANDS = (
    "record", "attach", "treat", "analyze", "merge", "check", "fix", "diff", "verify", "report", "view", "rules", "rule", "config",
    "capture", "mcp",
)  # fmt: skip
"""each in a module of its name, which is imported for whoever asks for it; `rule` is beside `rules`"""


ELSEWHERE = {
    "explain": "trace-doctor rule CODE", "help": "trace-doctor -h", "version": "trace-doctor --version",
    "profile": "trace-doctor record", "run": "trace-doctor record", "compare": "trace-doctor diff",
}  # fmt: skip
"""Command of other tools -> what does that here"""


class Commands(TyperGroup):
    """Ends as other programs do when nobody reads on (`| head`): typer would exit 1, which is a verdict of `check`. And
    says when Ctrl-C ended it: typer would say nothing."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if (here := ELSEWHERE.get(args[0])) and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"No such command '{args[0]}': that is `{here}`.")
        if self.get_command(ctx, args[0]) is None and os.path.exists(args[0]):
            ctx.fail(
                f"a path is no command: `trace-doctor analyze {one_line(shlex.quote(args[0]))}` diagnoses it."
            )
        return super().resolve_command(ctx, args)

    def make_context(self, *args: Any, **extra: Any) -> Any:
        self.params = [
            p for p in self.params if p.name != "install_completion"
        ]  # it would write to a file of the user's
        try:
            return super().make_context(*args, **extra)
        except BrokenPipeError:
            leave_stdout()
            raise typer.Exit(141) from None
        except Exception as error:
            _make_printable(error)
            raise

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            leave_stdout()
            raise typer.Exit(141) from None
        except KeyboardInterrupt:
            interrupted()
        except Exception as error:
            if (fmt := getattr(error, "option_name", "")[2:]) in SUFFIXES:
                error.possibilities = [f"-o {fmt}=PATH"]  # type: ignore[attr-defined]
            _make_printable(error)
            raise


def _make_printable(error: Exception) -> None:
    """typer shows its own errors itself, with what was typed."""
    if isinstance(getattr(error, "message", None), str):
        error.message = unbroken(error.message)  # type: ignore[attr-defined]


def _version(context: typer.Context, requested: bool) -> None:
    if not requested:
        return
    typer.echo(f"trace-doctor {VERSION}")
    if context.params.get("verbose"):
        from trace_doctor.loaders import _accelerator

        typer.echo(f"decoder of traces: {_accelerator.description()}")
    raise typer.Exit


def root(
    version: Annotated[
        bool, typer.Option("--version", "-V", callback=_version, help="Print the version and exit.")
    ] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", is_eager=True, help="With --version: also the decoder in use.")
    ] = False,
) -> None:
    """Find out why PyTorch training is slow or runs out of memory, and get the patch."""


def application(*only: str) -> typer.Typer:
    """The command line with all commands, or with these only: making all takes a tenth of a second, and a
    run needs one."""
    app = typer.Typer(
        cls=Commands,
        help="Find out why PyTorch training is slow or runs out of memory, and get the patch.",
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(root)
    for name in only or COMMANDS:
        module = import_module(f"trace_doctor.cli.commands.{'rules' if name == 'rule' else name}")
        app.command(**{"cls": Command, **getattr(module, "TYPER", {})})(expanded(getattr(module, name)))
    return app
