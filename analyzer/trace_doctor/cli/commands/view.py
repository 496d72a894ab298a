"""`trace-doctor view`."""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from trace_doctor.cli.console import Console
from trace_doctor.errors import UsageError

if TYPE_CHECKING:
    from trace_doctor.model import Result


def view(
    *,
    saved: Annotated[
        Path,
        typer.Argument(metavar="RESULT", help="A report.html, whose timeline it keeps, or a result.json."),
    ],
    trace: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The trace, or what -o perfetto=FILE wrote, to open in Perfetto at the moment in view. This opens"
            " https://ui.perfetto.dev and needs the network; the trace stays in the browser.",
        ),
    ] = None,
    console: Console,
) -> None:
    """Serve a report from 127.0.0.1 until Ctrl-C, and open moments of it in Perfetto."""
    with suppress(KeyboardInterrupt):  # also before it is served
        _serve(saved, trace, console)
    console.note("ended")


def _serve(saved: Path, trace: Path | None, console: Console) -> None:
    from trace_doctor.cli.page_server import PageServer
    from trace_doctor.reporters import Options, Served
    from trace_doctor.reporters.html import render
    from trace_doctor.reporters.saved import read_saved

    result = read_saved(saved)
    with ExitStack() as opened:
        served = file = None
        if trace is not None:
            file = opened.enter_context(_opened(trace))
            served = Served(input=_input_of(result, trace), name=trace.name)
        page = render(result, Options(served=served)).encode()
        server = opened.enter_context(PageServer(page, file))
        print(server.url, flush=True)
        console.note("Ctrl-C ends it.")
        server.serve_forever()


def _opened(trace: Path) -> BinaryIO:
    """The file of a trace. Raises UsageError for any other: what is served leaves the hands of its owner."""
    from trace_doctor.errors import DamagedCapture, NotACapture
    from trace_doctor.files import open_regular
    from trace_doctor.loaders.sniff import sniff

    try:
        with ExitStack() as on_failure:
            file = on_failure.enter_context(open_regular(trace))
            if sniff(trace, str(trace)) != "trace":
                raise UsageError(f"--trace: {trace} is a capture, but no trace")
            if not os.path.samestat(trace.stat(), os.fstat(file.fileno())):
                raise UsageError(f"--trace: {trace} was replaced meanwhile")
            on_failure.pop_all()
            return file
    except (NotACapture, DamagedCapture) as error:
        raise UsageError(f"--trace: {error}") from error
    except OSError as error:
        raise UsageError(f"--trace: {trace}: {error.strerror or 'cannot be read'}") from error


def _input_of(result: Result, trace: Path) -> int:
    """The number of the capture that a trace is of: the only one, else the one of that name."""
    if len(result.inputs) < 2:
        return 0
    named = [
        n
        for n, source in enumerate(result.inputs)
        if source.path.replace("\\", "/").split("/")[-1] == trace.name
    ]
    if len(named) != 1:
        raise UsageError(f"--trace: {len(named) or 'no'} captures of this result are called {trace.name}")
    return named[0]
