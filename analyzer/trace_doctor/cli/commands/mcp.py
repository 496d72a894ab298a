"""`trace-doctor mcp`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def mcp(
    roots: Annotated[
        list[Path],
        typer.Argument(metavar="FOLDER...", help="Folders of captures and scripts that the server may read."),
    ],
) -> None:
    """Serve the diagnosis to agents over the Model Context Protocol (stdio). It reads only, and only below the folders."""
    from trace_doctor.mcp_server.server import serve

    serve(roots)
