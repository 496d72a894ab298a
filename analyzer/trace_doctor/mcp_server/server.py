"""The server itself: stdio, one call after another. The only module that imports the SDK."""

from __future__ import annotations

import functools
import inspect
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

from trace_doctor.errors import TraceDoctorError, UsageError, one_line
from trace_doctor.files import read_only_below
from trace_doctor.mcp_server import answers as a
from trace_doctor.mcp_server.roots import Roots
from trace_doctor.mcp_server.tools import Tools
from trace_doctor.version import VERSION

try:
    from mcp.server import MCPServer
    from mcp.server.mcpserver.exceptions import ToolError
    from mcp.types import CallToolResult, TextContent, ToolAnnotations
    from pydantic import Field, ValidationError
except ImportError as error:
    raise UsageError(f"mcp needs the MCP SDK ({error}): pip install 'trace-doctor[mcp]'") from error

INSTRUCTIONS = (
    "Diagnoses PyTorch profiler traces and memory snapshots. Order of calls: list_captures, diagnose, finding, patch; "
    "after the fix is applied and recorded again, verify. not_captured means unknown, never fine. "
    f"{a.DATA}"
)
_PATH = Annotated[str, Field(description="File or folder, as list_captures names it", max_length=4096)]
_ARGUMENTS: dict[str, Any] = {
    "path": _PATH, "before": _PATH, "after": _PATH,
    "source": Annotated[str, Field(description="Folder or file of the training script; empty: none", max_length=4096)],
    "id": Annotated[str, Field(description="Id of a finding, such as TD101-1", max_length=100)],
    "rank": Annotated[int | None, Field(description="Only this rank")],
    "code": Annotated[str, Field(description="Code or name of a rule", max_length=100)],
    "contains": Annotated[str, Field(description="Part of the name", max_length=200)],
}  # fmt: skip
Most = Annotated[
    int, Field(ge=a.LEAST_TOKENS, le=a.MOST_TOKENS, description="Most tokens of the answer: UTF-8 bytes / 3")
]


def serve(folders: Sequence[Path]) -> None:
    """Serves on stdin and stdout until stdin ends. Raises UsageError for what is no folder."""
    logging.getLogger("mcp").setLevel(logging.WARNING)
    roots = Roots(folders)
    read_only_below(roots.folders)  # whatever another program puts in the place of what was looked at
    made(Tools(roots)).run("stdio")


class _Server(MCPServer[Any]):
    """Refuses arguments that no tool takes, which the SDK passes over, and says in one line what is wrong with others."""

    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> Any:
        """As the SDK does. Raises ToolError for arguments that do not fit."""
        takes = {tool.name: list(tool.input_schema["properties"]) for tool in await self.list_tools()}
        strange = [key for key in arguments if key not in takes.get(name, arguments)]
        if strange:
            raise ToolError(one_line(f"{name} takes no {strange[0][:50]!r}, only {', '.join(takes[name])}"))
        try:
            return await super().call_tool(name, arguments, context)
        except ToolError as error:
            if not isinstance(error.__cause__, ValidationError):
                raise
            wrong = error.__cause__.errors(include_url=False, include_input=False, include_context=False)[0]
            place = ".".join(map(str, wrong["loc"]))
            raise ToolError(one_line(f"{name}: {place}: {wrong['msg']}")) from None


def made(tools: Tools) -> MCPServer[Any]:
    """The server with all tools over these folders."""
    server = _Server("trace-doctor", instructions=INSTRUCTIONS, version=VERSION, log_level="WARNING")
    one_call = threading.Lock()

    def answer(most: int, tool: Callable[..., a.Answer], arguments: dict[str, Any]) -> CallToolResult:
        with one_call:  # each takes all cores and much memory
            try:
                data = a.fitted(tool(**arguments), most)
            except TraceDoctorError as error:
                raise ToolError(one_line(str(error))) from None
            except OSError as error:
                raise ToolError(
                    f"cannot be read: {one_line(error.strerror or 'input or output failed')}"
                ) from None
        return CallToolResult(
            content=[TextContent(type="text", text=a.text_of(data))], structured_content=data
        )

    read_only = ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False)
    for tool in (
        tools.list_captures, tools.diagnose, tools.finding, tools.explain_rule, tools.timeline, tools.kernels, tools.memory_at,
        tools.patch, tools.verify, tools.diff,
    ):  # fmt: skip
        server.tool(annotations=read_only)(_bounded(tool, answer))
    return server


def _bounded(
    tool: Callable[..., a.Answer], answer: Callable[..., CallToolResult]
) -> Callable[..., CallToolResult]:
    """The tool as the SDK reads it: what is said of its arguments, a limit of its answer, and the answer's type."""
    signature = inspect.signature(tool, eval_str=True)
    parameters = [
        p.replace(annotation=_ARGUMENTS.get(p.name, p.annotation)) for p in signature.parameters.values()
    ]
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters.append(inspect.Parameter("max_tokens", kind, default=a.DEFAULT_TOKENS, annotation=Most))

    @functools.wraps(tool)
    def call(max_tokens: int, **arguments: Any) -> CallToolResult:
        return answer(max_tokens, tool, arguments)

    returns = Annotated[CallToolResult, signature.return_annotation]
    call.__signature__ = inspect.Signature(parameters, return_annotation=returns)  # type: ignore[attr-defined]
    call.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": returns}
    return call
