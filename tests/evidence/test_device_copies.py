"""How fast the link to the GPU is, and which calls of copies would go if the memory were pinned."""

from __future__ import annotations

import pytest

from trace_doctor.capture import Capture
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.host.device_copies import DeviceCopies
from trace_doctor.testing import RunBuilder


def copies(b: RunBuilder) -> DeviceCopies:
    return Facts(Capture(0, b.run()))[DeviceCopies]


def two_copies(*, sizes: bool = True) -> RunBuilder:
    """8 MB from pinned memory at 40 GB/s, and as much from ordinary memory at a tenth of it, the first calls of the file."""
    b = RunBuilder()
    b.copy(2000, bytes=8_000_000)
    b.copy(200, "HtoD (Pinned -> Device)", bytes=8_000_000)
    for event in b.events:
        if not sizes:
            event["args"].pop("bytes", None)
    return b


def test_the_link_is_as_fast_as_the_fastest_copy_from_pinned_memory() -> None:
    found = copies(two_copies())
    assert found.link_gbs == pytest.approx(40, rel=0.01)
    assert found.faster.tolist() == [pytest.approx(1_800_000, rel=0.01)]


def test_without_sizes_the_link_is_that_of_the_gpu_and_nothing_gets_faster() -> None:
    without_pinned = RunBuilder()
    without_pinned.copy(2000, bytes=8_000_000)
    found = copies(two_copies(sizes=False))
    assert found.link_gbs == copies(without_pinned).link_gbs > 40
    assert found.faster.tolist() == [0]


def test_the_call_of_a_copy_may_be_the_first_event_of_a_file() -> None:
    found = copies(two_copies())
    assert found.call.tolist() == [0]
    assert found.removal(found.row > 0).make_async == (0,)
