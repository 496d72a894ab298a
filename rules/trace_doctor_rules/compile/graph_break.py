"""TD501 graph-break."""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec.structs import replace

from trace_doctor import (
    Claim,
    Confidence,
    Context,
    Fix,
    Location,
    Rule,
    Saving,
    Severity,
    Table,
    Target,
    threshold,
)
from trace_doctor.evidence.compile.compile_events import CompileEvents
from trace_doctor.evidence.compile.graph_breaks import Break
from trace_doctor.evidence.replay.what_if import Removal, Replay, ReplayOutcome
from trace_doctor.evidence.trace.recorded_operators import RecordedOperators
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, Valid
from trace_doctor.user_frames import called
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import table
from trace_doctor_rules.compile import _graph_break_cases as cases

_LEFT_OUT = "what one graph saves by fusion across the break is left out, only the interval allows for it"


class GraphBreak(Rule):
    """torch.compile splits a function into several graphs.

    What it does
    Finds the lines at which a compiled function leaves its graph and continues as another one, and the host time that
    each costs between the graphs. Functions that are compiled separately, or block by block, are not breaks.

    Why is this bad
    Every further graph is entered through Python: guards are checked, and the bytecode between the graphs is interpreted.
    Nothing is fused across the break, and CUDA graphs end there. A fast GPU waits meanwhile. A break inside a loop makes
    torch.compile skip the whole function, silently.

    Evidence
    A `Torch-Compiled Region` inside another of a different frame id, on the same thread (torch 2.5 and later), except for
    what a running graph or an operator calls. With `with_stack=True` the continuation is called
    `torch_dynamo_resume_in_<function>_at_<line>`, which names the line. A TORCH_TRACE log next to the trace names it too,
    with PyTorch's own reason. A function that calls a broken one breaks as well: only the innermost line is reported.
    Without names, nesting less than two deep or in one call only is reported as info.

    How the saving is estimated
    The captured steps are simulated without the host time between the end of one graph's compiled code and the start of
    the next, and without what Python does around each further graph, forward and backward: one graph is entered once.
    Synchronizing calls are left out (TD201 reports them). It is an estimate, because one graph replaces several. The
    interval goes from the time between the graphs alone to that of the further graphs as a whole, which fusion across the
    break cannot undercut. Without GPU work it is that time as it stands.

    Fix
    By what is on the line: remove prints and logging or move them out; `.item()`, `float()`, `int()` →
    `torch._dynamo.config.capture_scalar_outputs = True`, or read the value outside; a branch or assertion on a
    tensor's value → `torch.where`, `torch.cond`, `torch._check`; NumPy → torch; any other call →
    `torch.compiler.disable`, which makes the break deliberate. Then `fullgraph=True` turns a new break into an error.

    Fix safety
    Unsafe: output disappears, and code compiled as one graph may not be bitwise identical. `fullgraph=True` is only
    shown, because it raises as long as any break is left.

    When to ignore
    When the break is deliberate (`torch.compiler.disable`), or the graphs are so long that the time between them is
    negligible.

    References
    https://docs.pytorch.org/docs/stable/compile/programming_model.common_graph_breaks.html
    https://meta-pytorch.github.io/compile-graph-break-site/
    """

    code = "TD501"
    name = "graph-break"
    title = "Graph break in a compiled function"
    about = ("compile",)
    needs = (Steps, CompileEvents, Replay, Moments)
    to_pass = (RecordedOperators,)

    min_chain: int = threshold(
        2,
        "nested regions below the outermost one, for a break without a name",
        unit="count",
        source="12 real captures nest one region in another without a break that stacks would show",
    )
    min_calls: int = threshold(
        2,
        "calls that show it, for a break without a name",
        unit="count",
        source="one call may be an accident",
    )
    min_share: float = threshold(
        0.03,
        "host time between the graphs below which severity is info, as a share of the step",
        unit="share",
        source="the severity `warning` begins there",
    )

    VALID = [
        Valid("a compiled model, its blocks and a compiled loss", cases.siblings),
        Valid("a running graph calls a compiled function", lambda: cases.called_by("CompiledFunction")),
        Valid("the body of a custom operator is compiled", lambda: cases.called_by("mine::op")),
        Valid("nothing is compiled", cases.plain),
        Valid("regions without ids", cases.without_ids, skipped="numbers"),
    ]
    INVALID = [
        Invalid(
            "a print in forward",
            cases.broken,
            message="forward() breaks at train.py:8 into 2 extra graphs in each of 5 calls.",
            confidence="high",
            fixes=("train.py:8", "fullgraph"),
            saving_us=240,
            tolerance=0.1,
            file="train.py",
            line=cases.LINE,
            codemod="graph-break-line",
            before=cases.SCRIPT,
            after=cases.SCRIPT.replace('        print("shape", y.shape)\n', ""),
        ),
        Invalid(
            "the same without stacks",
            lambda: cases.broken(stacks=False),
            message="in each of 5 calls. The line was not recorded.",
            confidence="medium",
            fixes=("TORCH_LOGS", "fullgraph"),
            saving_us=240,
            tolerance=0.1,
        ),
        Invalid("a queue that stands still", lambda: cases.broken(stall=300), confidence="low"),
        Invalid("in an annotation", lambda: cases.called_by("FSDP::forward", "user_annotation"), severity="info", confidence="low"),
        Invalid("in what a running graph calls", cases.broken_inside_a_graph, message="forward() breaks at train.py:8 into 1 extra graph in"),
        Invalid("on the CPU", lambda: cases.broken(gpu=False), confidence="medium", message="train.py:8", saving_us=290),
        Invalid(
            "hidden behind GPU work",
            lambda: cases.broken(gpu_us=300),
            message="The time between the graphs overlaps other work.",
            severity="info",
            saving_us=0,
        ),
        Invalid("a chain of one without names", cases.chain_of_one, severity="info", confidence="low", message="into 1 extra graph in"),
        Invalid(
            "a chain of one, with nothing between",
            lambda: cases.chain_of_one(before=False),
            message="function of region 0 breaks into 1 extra graph in each of 5 calls. No time passes",
            severity="info",
            confidence="low",
        ),
        Invalid(
            "given up whole",
            cases.eager_inside,
            severity="info",
            confidence="medium",
            message="forward_blocks() (defined at train.py:15) runs eager because",
        ),
        Invalid("given up whole, and nothing around it", cases.given_up, severity="info", message="train.py:12"),
    ]  # fmt: skip

    def check(self, ctx: Context) -> Iterator[Claim]:
        ordinal: dict[str, int] = {}
        for graph_break in ctx[CompileEvents].shown_breaks:
            name = f"{graph_break.function or graph_break.outermost}"
            ordinal[name] = ordinal.get(name, 0) + 1
            yield self._claim(ctx, graph_break, f"{name}#{ordinal[name]}")

    def _claim(self, ctx: Context, graph_break: Break, key: str) -> Claim:
        moments = ctx[Moments]
        replay, gaps_alone = ctx[Replay], Removal(host_spans=graph_break.gaps)
        removal = gaps_alone | Removal(host_spans=graph_break.entering)
        whole = removal | Removal(host_spans=graph_break.whole_pieces)
        outcome = replay.without(removal) if graph_break.gaps else None
        saving = None
        if outcome:
            saving = outcome.saving_between(replay.without(gaps_alone), replay.without(whole))
            saving = replace(saving, how=f"{saving.how}; {_LEFT_OUT}")
        confidence, severity = self._sure(graph_break, outcome, on_gpu=ctx[Replay].graph is not None)
        gaps = [(start, end) for _, start, end in graph_break.gaps]
        return Claim(
            message=_message(graph_break, saving),
            confidence=confidence,
            severity=severity,
            saving=saving,
            location=Location(
                file=graph_break.file,
                line=graph_break.line,
                function=graph_break.function,
                ts_us=moments.ts_us(gaps[0][0]) if gaps else None,
            ),
            evidence=_tables(ctx, graph_break),
            spans=moments.longest(gaps, "between two graphs"),
            fixes=_fixes(graph_break),
            removal=removal if graph_break.gaps else None,
            owned=gaps,
            key=key,
        )

    def _sure(
        self, graph_break: Break, outcome: ReplayOutcome | None, on_gpu: bool
    ) -> tuple[Confidence, Severity | None]:
        if graph_break.whole or not graph_break.pieces:
            return "medium", "info"
        placed = graph_break.line is not None
        if not placed and (graph_break.chain < self.min_chain or graph_break.calls < self.min_calls):
            return "low", "info"
        small = outcome is None or outcome.share_of_step < self.min_share
        severity: Severity | None = "info" if small or _deliberate(graph_break) else None
        if on_gpu and (outcome is None or outcome.basis != "replay"):
            return "low", severity
        return ("high" if placed and on_gpu else "medium"), severity


def _deliberate(graph_break: Break) -> bool:
    """The script asks for this break."""
    return any(re.search(r"compiler\.disable|graph_break\(\)", b.reason) for b in graph_break.logged)


# -- words -----------------------------------------------------------------------------------------------------


def _message(graph_break: Break, saving: Saving | None) -> str:
    """What breaks, where, why, how often; and where no time passes, that."""
    reason = f" ({graph_break.logged[0].reason})" if graph_break.logged else ""
    place = f"{graph_break.file}:{graph_break.line}{reason}"
    function = graph_break.function
    who = called(function) if function else f"The compiled function of region {graph_break.outermost}"
    if graph_break.whole and graph_break.line:
        return f"{who} breaks at {place} and runs eager inside a compiled function."
    if graph_break.whole:
        return (
            f"{who} (defined at {graph_break.file}:{graph_break.defined}) runs eager because torch.compile skipped it. "
            "The line that breaks was not recorded."
        )
    if not graph_break.pieces:
        return f"{who} breaks at {place}. No compiled code follows."
    per_call = graph_break.pieces / max(graph_break.calls, 1)
    negligible = (
        " No time passes between the graphs."
        if saving is None
        else ""
        if saving.time_us_per_step and saving.share_of_step
        else " The time between the graphs overlaps other work."
    )
    return (
        f"{who} breaks{f' at {place}' if graph_break.line else ''} into {per_call:.0f} extra "
        f"graph{'s' if per_call >= 1.5 else ''} in each of {graph_break.calls} calls."
        f"{negligible}{'' if graph_break.line else ' The line was not recorded.'}"
    )


def _tables(ctx: Context, graph_break: Break) -> list[Table]:
    regions = ctx[CompileEvents].regions.all
    rows = []
    for compile_id in graph_break.regions:
        runs = [r for r in regions if r.compile_id == compile_id]
        frame = next((r.frame for r in runs if r.frame), None)
        took = sum(r.end - r.start for r in runs) / 1e3 / max(len(runs), 1)
        depth = max((r.depth for r in runs), default=0)
        name = f"{frame}" if frame else None
        rows.append([compile_id, name, len(runs), depth, took])
    tables = [
        table(
            "Graphs after the break" if graph_break.gaps else "Compiled code that ends at the break",
            {"region": "code", "function": "code", "runs": "count", "depth": "count", "time/run": "us"},
            rows,
        )
    ]
    if graph_break.logged:
        reasons = {(b.gb, b.reason): b for b in graph_break.logged}.values()
        tables.append(
            table(
                "Reason in the TORCH_TRACE log",
                {"id": "code", "reason": "text", "explanation": "text", "hint": "text"},
                [[b.gb, b.reason, b.explanation, next(iter(b.hints), "")] for b in reasons],
            )
        )
    return tables


# -- fixes -----------------------------------------------------------------------------------------------------

_VERIFY = "Record the same steps again: TD501 is gone. Or run with TORCH_LOGS=graph_breaks, which names every break."


def _fixes(graph_break: Break) -> list[Fix]:
    if graph_break.line is None:
        return [_FIND_THE_LINE, techniques.forbid_graph_breaks()]
    hints = dict.fromkeys(hint for b in graph_break.logged for hint in b.hints)
    return [
        techniques.keep_in_graph(
            _VERIFY,
            Target(file=graph_break.file, line=graph_break.line, function=graph_break.function),
            hints,
        ),
        techniques.forbid_graph_breaks(),
    ]


_FIND_THE_LINE = Fix(
    title="Run with TORCH_LOGS=graph_breaks",
    kind="command",
    safety="display",
    text="TORCH_LOGS=graph_breaks python train.py\n"
    "# or record the trace with with_stack=True, or with TORCH_TRACE=folder next to it",
    verify="The log names file and line of every break.",
)
