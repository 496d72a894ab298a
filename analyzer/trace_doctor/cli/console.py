"""What a command says: its result to stdout, notes to stderr, files whole or not at all."""

from __future__ import annotations

import logging
import os
import shutil
import stat
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, TypeVar

import typer

from trace_doctor.cli.process import PrintableFormatter, say
from trace_doctor.errors import UsageError, no_command_at_start, no_commands, one_line, printable
from trace_doctor.files import replacing

if TYPE_CHECKING:
    from trace_doctor.reporters import Options

T = TypeVar("T")


@dataclass(frozen=True)
class Console:
    """Handed to every command that says more than one thing; its fields are the options that set how much is said."""

    quiet: Annotated[
        int,
        typer.Option(
            "--quiet", "-q", count=True, show_default=False,
            help="-q: less text, no hints; -qq: only the exit code, and what -o asks for.",
        ),
    ] = 0  # fmt: skip
    verbose: Annotated[
        int,
        typer.Option(
            "--verbose", "-v", count=True, show_default=False, help="-v: phases; -vv: debug log, tracebacks."
        ),
    ] = 0

    def __post_init__(self) -> None:
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(PrintableFormatter("%(message)s"))
        level = (logging.WARNING, logging.INFO, logging.DEBUG)[min(self.verbose, 2)]
        logging.basicConfig(handlers=[handler], level=level, force=True)

    @property
    def silent(self) -> bool:
        """Whether nothing but the exit code is wanted."""
        return self.quiet >= 2

    def note(self, *lines: str) -> None:
        """Lines for the person at the terminal. What a result says, and the name of a file, cannot begin one of its own."""
        say(*lines)

    def hint(self, *lines: str) -> None:
        """Lines that -q leaves out."""
        if not self.quiet:
            self.note(*lines)

    def conclude(self, text: str) -> None:
        """The verdict, which -qq alone leaves out."""
        if not self.silent:
            self.note(text)

    def write(self, path: Path, data: str | bytes, place: Path | None = None) -> None:
        """A file, whole or not at all. Raises UsageError when the place cannot be written."""
        with replacing(path, place) as file:
            file.write(data if isinstance(data, bytes) else data.encode("utf-8", "surrogateescape"))

    def print_bytes(self, data: bytes) -> None:
        """What programs read, to stdout as it is. It was asked for, so that -qq leaves it there."""
        sys.stdout.flush()
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()

    def print_patch(self, data: bytes) -> None:
        """As it is for a program to apply; on a terminal with what that would obey written out. Raises UsageError for one
        with a command to a CI server, unless it goes into a file: it would not apply without, and logs are read from pipes."""
        if self.silent:
            return
        if not sys.stdout.isatty():
            text = data.decode("utf-8", "replace")
            if no_command_at_start(no_commands(text)) != text and not _is_file(sys.stdout):
                raise UsageError("the patch holds what CI servers obey in a log: write it with --patch FILE")
            self.print_bytes(data)
        else:
            from trace_doctor.reporters.units import visible

            sys.stdout.write(visible(data.decode("utf-8", "replace"), block=True))
            sys.stdout.flush()

    def print_text(self, render: Callable[[Options], str], options: Options) -> None:
        """What people read, to stdout as the terminal can show it."""
        if not self.silent:
            ascii = not (sys.stdout.encoding or "").lower().replace("-", "").startswith("utf")
            columns = shutil.get_terminal_size().columns  # COLUMNS, where it is set; 80 of a pipe
            width = min(max(columns, 40), 160)
            sys.stdout.write(
                render(
                    replace(options, color=self.in_color, width=width, ascii=ascii, brief=bool(self.quiet))
                )
            )
            sys.stdout.flush()

    @property
    def in_color(self) -> bool:
        """False here; a terminal of rich's may show colors."""
        return False

    def choose(
        self, items: Iterable[T], describe: Callable[[T], str], question: Callable[[T], str]
    ) -> list[T]:
        """Those that were answered with y: each is shown and asked for, n leaves it out, q and all behind it."""
        choice = []
        for item in items:
            sys.stdout.write("\t".join(map(printable, describe(item).split("\t"))))
            sys.stdout.flush()
            answer = ""
            while answer not in ("y", "n", "q"):
                answer = _answer(f"{question(item)} (y/n/q)")
            if answer == "q":
                break
            if answer == "y":
                choice.append(item)
        return choice


@dataclass(frozen=True)
class ColorConsole(Console):
    """One that can be told to use colour."""

    color: Annotated[str, typer.Option(help="auto, always or never.")] = "auto"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.color not in ("auto", "always", "never"):
            raise UsageError(f"--color: {self.color!r} is not auto, always or never")

    @property
    def in_color(self) -> bool:
        """As asked for; else as the environment says, and only on a terminal that knows colours."""
        if self.color != "auto":
            return self.color == "always"
        if os.environ.get("NO_COLOR"):
            return False
        if os.environ.get("FORCE_COLOR") or os.environ.get("CLICOLOR_FORCE"):
            return True
        return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def _is_file(stream: IO[str]) -> bool:
    try:
        return stat.S_ISREG(os.fstat(stream.fileno()).st_mode)
    except (OSError, ValueError):
        return False


def _answer(question: str) -> str:
    """What was typed; the end of the input is q."""
    sys.stderr.write(one_line(question) + " ")
    sys.stderr.flush()
    line = sys.stdin.readline()
    return line.strip().lower() if line else "q"
