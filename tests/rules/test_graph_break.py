"""TD501 with a TORCH_TRACE log beside the trace."""

from __future__ import annotations

from trace_doctor.capture import Capture
from trace_doctor.evidence.base import Facts
from trace_doctor.loaders.torch_trace import CompileLog, LogFrame, LoggedBreak, LoggedCompile
from trace_doctor.rule import Claim, Context
from trace_doctor.testing import RunBuilder
from trace_doctor_rules.compile.graph_break import GraphBreak


def _trace() -> RunBuilder:
    b = RunBuilder()
    for _ in range(4):
        with b.step(), b.region(0):
            for piece in range(2):
                with b.op("CompiledFunction", us=10):
                    b.launch(5)
                if piece:
                    continue
                b.wait(200)
                with b.region(1), b.op("CompiledFunction", us=10):
                    b.launch(5)
    return b


def _claims(reason: str, hint: str = "Move it out.") -> list[Claim]:
    frames = (("0/0", 5, "forward"), ("1/0", 8, "torch_dynamo_resume_in_forward_at_8"))
    said = LoggedBreak("0/0", reason, "", (hint,), "GB0001", False, (LogFrame("train.py", 8, "forward"),))
    log = CompileLog(
        "trace.log",
        None,
        None,
        breaks=(said,),
        compiles=tuple(LoggedCompile(i, LogFrame("train.py", n, f), None) for i, n, f in frames),
        recompiles=(),
        records=3,
    )
    rule = GraphBreak()
    facts = Facts(Capture(0, _trace().run(), torch_logs=(log,)))
    return list(rule.check(Context(facts, rule)))


def test_the_log_gives_line_reason_and_hints_where_stacks_are_missing() -> None:
    [claim] = _claims("Failed to trace builtin operator")
    assert "train.py:8 (Failed to trace builtin operator)" in claim.message
    assert (claim.location.file, claim.location.line) == ("train.py", 8)
    assert claim.confidence == "high"
    assert claim.severity is None
    assert "Move it out." in claim.fixes[0].text
    assert claim.fixes[0].codemod == "graph-break-line"


def test_a_break_that_the_script_asks_for_is_only_a_hint() -> None:
    [claim] = _claims("Skip calling `torch.compiler.disable()`d function")
    assert claim.severity == "info"
