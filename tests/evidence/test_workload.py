from __future__ import annotations

from typing import Any

import pytest

from trace_doctor.capture import Capture
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.trace.workload import Workload
from trace_doctor.testing import RunBuilder


def shapes(dims: list[Any], key: str = "Input Dims") -> tuple[str, ...]:
    b = RunBuilder(shapes=True)
    for _ in range(3):
        with b.step(), b.op("aten::mm", dims=dims):
            b.launch(100)
    for event in b.events:
        if "Input Dims" in event.get("args", {}):
            event["args"][key] = event["args"].pop("Input Dims")
    return Facts(Capture(0, b.run()))[Workload].shapes


@pytest.mark.parametrize("key", ["Input Dims", "Input dims"])
def test_a_form_is_the_shapes_of_the_tensors(key: str) -> None:
    """Under the name of today, and under that of torch 1.8."""
    assert shapes([[64, 784], [784, 10]], key) == ("aten::mm [64, 784] [784, 10]",)


def test_numbers_have_no_shape() -> None:
    assert shapes([[64, 784], [], [784, 10]]) == ("aten::mm [64, 784] [784, 10]",)
