"""How a technique becomes a fix."""

from __future__ import annotations

from typing import Any

from trace_doctor import Fix

LAST_BITS = "results differ in the last bits"
LOWER_PEAK = "record the memory again: the peak has fallen and this finding is gone"


def patch(title: str, codemod: str, text: str, risk: str, verify: str, **more: Any) -> Fix:
    """A fix that a codemod makes."""
    return Fix(title=title, kind="patch", codemod=codemod, text=text, risk=risk, verify=verify, **more)


def advice(title: str, text: str, risk: str, verify: str, **more: Any) -> Fix:
    """A fix that people make by hand."""
    return Fix(title=title, kind="advice", safety="display", text=text, risk=risk, verify=verify, **more)
