"""Ten tasks as an agent would do them, over the MCP server with the SDK's client: calls and tokens of each.

`python bench/agents.py` prints the table of docs/agents.md. It ends with 1 where an answer was not reached within the limits.
A script makes the calls, so this shows that the answer is reachable, not that a model finds it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, StdioServerParameters

SAMPLES = Path(__file__).resolve().parent.parent / "sample_traces"
MOST_CALLS, MOST_TOKENS = 5, 8_000
Calls = list[tuple[str, dict[str, Any]]]


@dataclass(frozen=True)
class Task:
    question: str
    calls: Calls
    reached: Callable[[dict[str, Any]], object]
    """whether the last answer holds what was asked for"""


def _simulated(sample: str) -> str:
    return f"{sample}/simulated/fault"


BREAKS = "graph_break_two/cpu/fault"
IN_BREAKS = {"path": BREAKS, "source": "graph_break_two"}
TASKS = [
    Task("Which captures are there?", [("list_captures", {})], lambda a: a["captures"]),
    Task(
        "Which rank is late?",
        [("diagnose", {"path": "straggler/cpu/fault"})],
        lambda a: any("rank" in f["where"] and f["id"].startswith("TD6") for f in a["findings"]),
    ),
    Task(
        "Which line breaks the graph?",
        [("diagnose", IN_BREAKS)],
        lambda a: a["findings"][0]["place"] == "fault.py:24",
    ),
    Task(
        "What does the first fix save?",
        [("diagnose", IN_BREAKS), ("finding", {**IN_BREAKS, "id": "TD501-1"})],
        lambda a: "%" in a["finding"]["saving"],
    ),
    Task(
        "What is the patch?",
        [("diagnose", IN_BREAKS), ("patch", {**IN_BREAKS, "id": "TD501-1"})],
        lambda a: a["patches"][0]["diff"].startswith("diff --git") and not a["applied"],
    ),
    Task(
        "Does the patch hold?",
        [("verify", {"before": BREAKS, "after": "graph_break_two/cpu/healthy"})],
        lambda a: a["exit_code"] == 0,
    ),
    Task(
        "Which kernel takes longest?",
        [("kernels", {"path": _simulated("fp32_matmul")})],
        lambda a: a["kernels"][0]["total_us"],
    ),
    Task(
        "What runs while the GPU waits?",
        [
            ("diagnose", {"path": _simulated("launch_bound")}),
            ("timeline", {"path": _simulated("launch_bound"), "start_us": 1000, "dur_us": 200}),
        ],
        lambda a: a["events"],
    ),
    Task(
        "What fills the memory at its peak?",
        [("memory_at", {"path": _simulated("memory_growth")})],
        lambda a: a["devices"][0]["by_category"],
    ),
    Task(
        "Was memory recorded at all?",
        [("memory_at", {"path": _simulated("launch_bound")})],
        lambda a: not a["devices"] and a["not_captured"],
    ),
]


async def _done(task: Task) -> tuple[int, int, bool]:
    """(calls, tokens of all answers, whether the answer was reached), with a server of its own."""
    spent, last = 0, None
    server = StdioServerParameters(command=sys.executable, args=["-m", "trace_doctor", "mcp", str(SAMPLES)])
    async with Client(server) as client:
        for name, arguments in task.calls:
            last = await client.call_tool(name, arguments)
            spent += -(-len(last.content[0].text.encode()) // 3)
    reached = last is not None and not last.is_error and bool(task.reached(last.structured_content))
    return len(task.calls), spent, reached and len(task.calls) <= MOST_CALLS and spent <= MOST_TOKENS


def table() -> tuple[str, bool]:
    """The table in Markdown, and whether all answers were reached."""
    lines = ["| task | calls | tokens | reached |", "| --- | --- | --- | --- |"]
    whole = True
    for task in TASKS:
        calls, spent, reached = anyio.run(_done, task)
        whole = whole and reached
        lines.append(f"| {task.question} | {calls} | {spent:,} | {'yes' if reached else 'no'} |")
    return "\n".join(lines), whole


if __name__ == "__main__":
    text, whole = table()
    print(text)
    sys.exit(0 if whole else 1)
