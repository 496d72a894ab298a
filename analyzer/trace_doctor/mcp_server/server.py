"""The server itself: stdio, one call after another. The only module that imports the SDK."""

from __future__ import annotations

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
    from pydantic import Field
except ImportError as error:
    raise UsageError(f"mcp needs the MCP SDK ({error}): pip install 'trace-doctor[mcp]'") from error

INSTRUCTIONS = (
    "Diagnoses PyTorch profiler traces and memory snapshots. Order of calls: list_captures, diagnose, finding, patch; "
    "after the fix is applied and recorded again, verify. not_captured means unknown, never fine. "
    f"{a.DATA}"
)
Path_ = Annotated[str, Field(description="File or folder, as list_captures names it", max_length=4096)]
Source = Annotated[
    str, Field(description="Folder or file of the training script; empty: none", max_length=4096)
]
Id = Annotated[str, Field(description="Id of a finding, such as TD101-1", max_length=100)]
Rank = Annotated[int | None, Field(description="Only this rank")]
Most = Annotated[
    int,
    Field(ge=a.LEAST_TOKENS, le=a.MOST_TOKENS, description="Most tokens of the answer: UTF-8 bytes / 3"),
]


def serve(folders: Sequence[Path]) -> None:
    """Serves on stdin and stdout until stdin ends. Raises UsageError for what is no folder."""
    logging.getLogger("mcp").setLevel(logging.WARNING)
    roots = Roots(folders)
    read_only_below(roots.folders)  # whatever another program puts in the place of what was looked at
    made(Tools(roots)).run("stdio")


def made(tools: Tools) -> MCPServer[Any]:
    """The server with all tools over these folders."""
    server: MCPServer[Any] = MCPServer(
        "trace-doctor", instructions=INSTRUCTIONS, version=VERSION, log_level="WARNING"
    )
    one_call = threading.Lock()

    def answer(most: int, tool: Callable[..., a.Answer], *arguments: Any) -> CallToolResult:
        with one_call:  # each takes all cores and much memory
            try:
                data = a.fitted(tool(*arguments), most)
            except TraceDoctorError as error:
                raise ToolError(one_line(str(error))) from None
            except OSError as error:
                raise ToolError(
                    f"cannot be read: {one_line(error.strerror or 'input or output failed')}"
                ) from None
        return CallToolResult(
            content=[TextContent(type="text", text=a.text_of(data))], structured_content=data
        )

    @server.tool(annotations=_read_only())
    def list_captures(
        path: Path_ = ".", max_tokens: Most = a.DEFAULT_TOKENS
    ) -> Annotated[CallToolResult, a.Captures]:
        """Traces and memory snapshots that can be diagnosed. Call this first."""
        return answer(max_tokens, tools.list_captures, path)

    @server.tool(annotations=_read_only())
    def diagnose(
        path: Path_, source: Source = "", max_tokens: Most = a.DEFAULT_TOKENS
    ) -> Annotated[CallToolResult, a.Diagnosis]:
        """Why training is slow or runs out of memory: verdict, findings with place and saving, and what was not captured."""
        return answer(max_tokens, tools.diagnose, path, source)

    @server.tool(annotations=_read_only())
    def finding(
        path: Path_, id: Id, source: Source = "", max_tokens: Most = a.DEFAULT_TOKENS
    ) -> Annotated[CallToolResult, a.FindingDetail]:
        """Evidence, moments and fixes of one finding."""
        return answer(max_tokens, tools.finding, path, id, source)

    @server.tool(annotations=_read_only())
    def explain_rule(
        code: Annotated[str, Field(description="Code or name of a rule", max_length=100)],
        max_tokens: Most = a.DEFAULT_TOKENS,
    ) -> Annotated[CallToolResult, a.RuleText]:
        """What a rule checks, why it matters, its thresholds and fixes."""
        return answer(max_tokens, tools.explain_rule, code)

    @server.tool(annotations=_read_only())
    def timeline(
        path: Path_,
        id: Id = "",
        start_us: float | None = None,
        dur_us: float = 10_000.0,
        rank: Rank = None,
        max_tokens: Most = a.DEFAULT_TOKENS,
    ) -> Annotated[CallToolResult, a.Window]:
        """The longest events in a window of one trace: of a finding's first moment, or of start_us and dur_us."""
        return answer(max_tokens, tools.timeline, path, id, start_us, dur_us, rank)

    @server.tool(annotations=_read_only())
    def kernels(
        path: Path_,
        contains: Annotated[str, Field(description="Part of the name", max_length=200)] = "",
        rank: Rank = None,
        max_tokens: Most = a.DEFAULT_TOKENS,
    ) -> Annotated[CallToolResult, a.Kernels]:
        """GPU kernels by total time."""
        return answer(max_tokens, tools.kernels, path, contains, rank)

    @server.tool(annotations=_read_only())
    def memory_at(
        path: Path_, at: float | None = None, rank: Rank = None, max_tokens: Most = a.DEFAULT_TOKENS
    ) -> Annotated[CallToolResult, a.Memory]:
        """Memory by category at a moment, without one at the peak."""
        return answer(max_tokens, tools.memory_at, path, at, rank)

    @server.tool(annotations=_read_only())
    def patch(
        path: Path_, source: Source, id: Id = "", max_tokens: Most = a.DEFAULT_TOKENS
    ) -> Annotated[CallToolResult, a.Patches]:
        """The diff for one finding or all. It is never applied."""
        return answer(max_tokens, tools.patch, path, source, id)

    @server.tool(annotations=_read_only())
    def verify(
        before: Path_, after: Path_, id: Id = "", max_tokens: Most = a.DEFAULT_TOKENS
    ) -> Annotated[CallToolResult, a.Compared]:
        """Whether a fix held, from a capture before and one after."""
        return answer(max_tokens, tools.verify, before, after, id)

    @server.tool(annotations=_read_only())
    def diff(
        before: Path_, after: Path_, max_tokens: Most = a.DEFAULT_TOKENS
    ) -> Annotated[CallToolResult, a.Compared]:
        """What changed between two captures of one job, beyond the noise."""
        return answer(max_tokens, tools.diff, before, after)

    return server


def _read_only() -> ToolAnnotations:
    return ToolAnnotations(read_only_hint=True, destructive_hint=False, open_world_hint=False)
