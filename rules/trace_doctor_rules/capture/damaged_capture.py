"""TD002 damaged-capture."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from trace_doctor import NOTE_FROM, Claim, Context, Rule, Table, threshold
from trace_doctor.evidence.durations import two_figures
from trace_doctor.evidence.idle.gaps import IdleLedger
from trace_doctor.evidence.intervals import intersect, intervals, total, union
from trace_doctor.evidence.trace.capture_health import CaptureHealth
from trace_doctor.evidence.trace.recorded_operators import WHOLE, OperatorNumbers
from trace_doctor.evidence.trace.spans import Moments
from trace_doctor.evidence.trace.steps import Steps
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules._shared import advice, spans_of
from trace_doctor_rules.capture._graph_gaps_evidence import GraphGaps


class _Spoilt(RunBuilder):
    """A trace whose text is damaged after it was written."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self._how = how
        for _ in range(20):
            with self.step(), self.op("aten::mm"):
                self.launch(100)

    def json(self) -> str:
        text = super().json()
        if self._how == "truncated":
            return text[: int(0.9 * len(text))]
        if self._how == "appended":
            return text + "PK\x03\x04 another file"
        if self._how == "escapes":
            return text.replace('"aten::mm"', r'"C:\Users\model.py aten::mm"', 1)
        if self._how == "negative":
            return text.replace('"dur": 100.000', '"dur": -1')
        return text


def _paused() -> RunBuilder:
    """Steps whose operators are all there, with many that ran while nothing was recorded, between the third and the fourth."""
    b = _thinned_out(1)
    numbered = [e for e in b.events if "External id" in e["args"]]
    for event in numbered[len(numbered) // 2 :]:
        event["args"]["External id"] += 100_000
    return b


def _thinned_out(keep: int, *, runtime: bool = False, count: int = 200) -> RunBuilder:
    """Steps of so many operators, of which each of so many is left, with the kernel that it launched. `runtime`: calls and operators
    share one number, as Kineto for ROCm counts, and operators have one of their own beside."""
    b = RunBuilder()
    for _ in b.steps(6):
        for n in range(count):
            kept = len(b.events)
            b.run_op("aten::mm", 15, host_us=20)
            if n % keep:
                del b.events[kept:]
    for n, event in enumerate(e for e in b.events if runtime and e["cat"] == "cpu_op"):
        event["args"] |= {"External id": 10 * n + 1, "Record function id": n + 1}
    return b


def _graphs(us: float = 5000, call: str = "cudaGraphLaunch") -> RunBuilder:
    """In each step a launch that arrives while the GPU is at work; it stands still for so long before it begins with that."""
    b = RunBuilder()
    for _ in b.steps(6):
        b.run_op("aten::mm", 1000, host_us=20)
        b.stall(us)
        b.launch(2000, call=call)
        b.sync()
    return b


def _halved(
    nodes: int = 40, keep: int = 2, us: float = 8, *, ids: bool = False, last: int = 0, host: bool = False
) -> RunBuilder:
    """In each step a graph of so many kernels, of which each of so many is left. `ids`: the nodes say which graph they are of;
    `last`: nodes that the launch of the last step has more; `host`: a function of the host runs between two."""
    b = RunBuilder()
    for step in b.steps(6):
        b.run_op("aten::mm", 1000, host_us=20)
        first = len(b.events)
        b.launch(us, call="cudaGraphLaunch_v10000")
        kernel = next(e for e in b.events[first:] if e["cat"] == "kernel")
        if not nodes:
            b.events.remove(kernel)
        if ids:
            kernel["args"] |= {"graph id": 3, "graph node id": (3 << 32) + 1}
        for n in range(1, nodes + last * (step == 5)):
            at = {"ts": kernel["ts"] + n * (us + 1), "args": {**kernel["args"]}}
            if n % keep == 0:
                b.events.append({**kernel, **at})
            elif host:
                b.events.append({**kernel, **at, "cat": "graph_host_node", "name": "HostNode: callback"})
        b.stall(nodes * (us + 1))
        b.sync()
    return b


class DamagedCapture(Rule):
    """The file is not whole.

    What it does
    Says what of the file was lost, what was repaired, and how much of it is left.

    Why is this bad
    What is missing is missing from every figure of this report. A trace that a killed job left behind ends in the middle
    of a step; events whose duration was lost count as nothing.

    Evidence
    What the loader met while reading: an early end, unreadable events, bytes after the end that are no trace (another capture
    that was appended, packed or not), events read only after a repair (lone backslashes of Windows paths, NaN, invalid UTF-8),
    negative, missing or overflown durations. The profiler numbers operators one by one: where fewer than half of the numbers
    are in the file, most operators were removed from it. Idle time in such a file, with nothing recorded on the host, is
    explained by that, and no rule blames the host for it. Where the GPU shows nothing for 100 us and more at work of a CUDA
    graph whose launch arrived before, for 5 us and more between two nodes of one launch, or after a launch of which no node is in
    the file, nodes of the graph, or what they wait for, were not recorded (below a tenth of the step info). Between nodes that is not
    said of a graph that another launch shows with as many nodes (`graph id`), nor where a host node ran.

    How the saving is estimated
    There is none: this is about the capture.

    Fix
    Record it again and let the profiler finish: leave its `with` block, or wait for the trace handler, before the process
    ends. Impossible durations come from the profiler: a newer torch, fewer activities, or no `with_stack` avoid them.

    Fix safety
    Only shown: it concerns the code that records.

    When to ignore
    When only repairs are reported: nothing was lost then.

    References
    https://docs.pytorch.org/docs/stable/profiler.html
    """

    code = "TD002"
    name = "damaged-capture"
    title = "Trace file is damaged or incomplete"
    needs = (CaptureHealth,)
    wants = (OperatorNumbers, IdleLedger, Moments, Steps, GraphGaps)

    max_clamped: float = threshold(
        0.01,
        "events without a possible duration, as a share of all",
        unit="share",
        source="real captures of sound runs have up to a few per million",
    )

    min_graph_share: float = threshold(
        NOTE_FROM,
        "time in which the GPU stands still at CUDA graphs without a reason, as a share of the step",
        unit="share",
        source="50 % in a public capture with 70 launches of graphs, under 0.1 % in eleven others",
    )
    doubt_graph_share: float = threshold(
        0.10,
        "the same from which on it is a warning: nobody can say that the run is sound",
        unit="share",
        source="as `max_unattributed` of the rules about time",
    )

    VALID = [
        Valid("a whole file", lambda: _Spoilt("not at all")),
        Valid("next to none without a duration", lambda: _Spoilt("negative"), thresholds={"max_clamped": 0.9}),
        Valid("graphs that begin at once", lambda: _graphs(0)),
        Valid("graphs that hardly wait", _graphs, thresholds={"min_graph_share": 0.9}),
        Valid("a graph of kernels that follow each other", lambda: _halved(keep=1)),
        Valid("a graph whose nodes wait for others in each launch", lambda: _halved(ids=True)),
        Valid("nodes that wait for functions of the host", lambda: _halved(host=True)),
        Valid("a kernel that waits", lambda: _graphs(call="cudaLaunchKernel")),
        Valid("each operator there", lambda: _thinned_out(1)),
        Valid("a pause between two windows", _paused),
        Valid("written by hand", lambda: _thinned_out(5, count=40)),
        Valid("numbers that the runtime's calls share", lambda: _thinned_out(1, runtime=True)),
    ]  # fmt: skip
    INVALID = [
        Invalid("cut off", lambda: _Spoilt("truncated"), severity="warning", message="truncated"),
        Invalid(
            "another file appended", lambda: _Spoilt("appended"), severity="warning", message="after its end"
        ),
        Invalid("lone backslashes", lambda: _Spoilt("escapes"), severity="info", message="repair"),
        Invalid("durations of -1", lambda: _Spoilt("negative"), severity="warning", message="duration"),
        Invalid(
            "graphs that wait for nothing that is recorded",
            _graphs,
            severity="warning",
            message="The GPU shows nothing for 4.9 ms per step",
        ),
        Invalid(
            "graphs that wait for a short time", lambda: _graphs(250), severity="info", message="CUDA graphs"
        ),
        Invalid(
            "half of the kernels of each graph taken out",
            _halved,
            severity="warning",
            message="within CUDA graphs (6 launches)",
        ),
        Invalid(
            "a graph of which one launch shows more nodes",
            lambda: _halved(ids=True, last=4),
            severity="warning",
            message="within CUDA graphs (5 launches)",
        ),
        Invalid(
            "launches of graphs without any node",
            lambda: _halved(nodes=0, us=900),
            severity="warning",
            message="within CUDA graphs (6 launches)",
        ),
        Invalid(
            "most operators taken out",
            lambda: _thinned_out(5),
            severity="warning",
            message="240 of 1,196 operators are in the file",
        ),
    ]

    def check(self, ctx: Context) -> Iterator[Claim]:
        yield from self._damage(ctx[CaptureHealth])
        if (numbers := ctx.get(OperatorNumbers)) and numbers.most_missing:
            yield _taken_out(ctx, numbers)
        elif (graphs := ctx.get(GraphGaps)) and total(graphs.idle) >= max(
            self.min_graph_share * graphs.length, 1
        ):
            yield _within_graphs(ctx, graphs, self.doubt_graph_share)

    def _damage(self, health: CaptureHealth) -> Iterator[Claim]:
        damage = health.damage
        clamped = damage.clamped if damage.clamped > self.max_clamped * max(health.events, 1) else 0
        kinds = [
            ("truncated", int(damage.truncated and not damage.given_up)),
            (f"reading stopped after {damage.given_up:,} unreadable places", damage.given_up),
            (f"{_events(damage.lost)} unreadable", damage.lost),
            (
                f"{damage.leading:,} byte{'s' if damage.leading > 1 else ''} before its begin unreadable",
                damage.leading,
            ),
            (
                f"{damage.trailing:,} byte{'s' if damage.trailing > 1 else ''} after its end unreadable",
                damage.trailing,
            ),
            (f"{_events(clamped)} without a valid duration", clamped),
            (f"{_events(damage.repaired)} repaired", damage.repaired),
        ]
        parts = [text for text, count in kinds if count]
        if not parts:
            return
        tables = [
            Table.with_units(
                "Events",
                {"what": "text", "count": "count"},
                [
                    ["read", health.events],
                    ["unreadable", damage.lost],
                    ["repaired", damage.repaired],
                    ["without a valid duration", damage.clamped],
                ],
            )
        ]
        if health.may_be_off:
            tables.append(
                Table.with_units(
                    "Effect on the step time breakdown",
                    {"what": "text", "of the window": "share"},
                    [["possible error", health.may_be_off]],
                )
            )
        if damage.notes:
            tables.append(
                Table.with_units("Reader notes", {"note": "text"}, [[note] for note in damage.notes])
            )
        yield Claim(
            message=f"The trace file is damaged: {', '.join(parts)}. {_events(health.events).capitalize()} were read.",
            confidence="high",
            severity="warning"
            if damage.truncated or damage.lost or damage.leading or damage.trailing or clamped
            else "info",
            evidence=tables,
            fixes=[
                advice(
                    "Record again and let the profiler finish",
                    "with torch.profiler.profile(...) as prof:\n    ...  # leave this block before the process ends",
                    "",
                    "TD002 is gone in the new recording",
                )
            ],
            key="damage",
        )


def _taken_out(ctx: Context, numbers: OperatorNumbers) -> Claim:
    """Owns the idle time in which nothing is recorded: operators and kernels that are gone lay there."""
    ledger, steps, moments = ctx.get(IdleLedger), ctx.get(Steps), ctx.get(Moments)
    owned: list[tuple[int, int]] = []
    if ledger is not None and steps is not None:
        blank = union(np.concatenate([ledger.pieces("python"), ledger.pieces("unattributed")]))
        owned = spans_of(intersect(blank, intervals(steps.on_device("steady"))))
    return Claim(
        message=(
            f"The numbers of operators show that {numbers.present:,} of {numbers.numbered:,} operators are in the file. The others and "
            "their launches were removed, so idle time may have been busy and sums are too small."
        ),
        confidence="high",
        severity="warning",
        spans=moments.longest(owned, "nothing recorded") if moments is not None else (),
        fixes=[
            advice(
                "Analyze the whole file",
                f"# {WHOLE}: no filter, no sample of its events",
                "",
                "TD002 is gone in the whole file",
            )
        ],
        owned=owned,
        key="taken out",
    )


def _within_graphs(ctx: Context, graphs: GraphGaps, doubt_share: float) -> Claim:
    moments, owned = ctx.get(Moments), spans_of(graphs.idle)
    return Claim(
        message=(
            f"The GPU shows nothing for {two_figures(total(graphs.idle) / graphs.count / 1e3)} per step within CUDA graphs "
            f"({graphs.launches:,} launches). Some of their nodes, or what they wait for, were not recorded."
        ),
        confidence="medium",
        severity="warning" if total(graphs.idle) >= doubt_share * graphs.length else "info",
        spans=moments.longest(owned, "at a CUDA graph", device=graphs.device) if moments is not None else (),
        fixes=[
            advice(
                "Record some steps without CUDA graphs",
                'torch.compile(model)   # in place of mode="reduce-overhead"; or call the model where the graph is replayed\n'
                "# a newer driver and torch record more of a graph",
                "",
                "Record again: TD002 is gone and what ran there has a name",
            )
        ],
        owned=owned,
        key="graphs",
    )


def _events(count: int) -> str:
    return f"{count:,} event{'' if count == 1 else 's'}"
