"""Whether a step adds the gradients of several backward passes up before its optimizer steps."""

from __future__ import annotations

import libcst as cst

from trace_doctor.program.queries.loops import enclosing_loop, optimizer_steps, zero_grads
from trace_doctor.program.queries.training import Step
from trace_doctor.program.script import Script


def accumulates(step: Step) -> bool:
    """Whether the loop around backward steps its optimizer in each N-th iteration only, or a loop around it does behind it."""
    script, loop = step.script, step.home
    if not isinstance(loop, cst.For | cst.While):
        return False
    steps, clears = optimizer_steps(script, loop), zero_grads(script, loop)
    if steps:
        return all(_each_nth(script, call, loop) for call, _ in (*steps, *clears))
    around = [
        up for up in script.between(loop, script.function_of(loop)) if isinstance(up, cst.For | cst.While)
    ]
    behind = [call for up in around for call, _ in optimizer_steps(script, up)]
    return not clears and any(enclosing_loop(script, call) in around for call in behind)


def _each_nth(script: Script, call: cst.Call, loop: cst.CSTNode) -> bool:
    """`if (i + 1) % steps == 0: optimizer.step()`"""
    tests = [up.test for up in script.between(call, loop) if isinstance(up, cst.If)]
    return any(script.all(cst.Modulo, within=test) for test in tests)
