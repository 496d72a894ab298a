"""What ends for want of memory says so in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trace_doctor.testing import RunBuilder

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits of memory are Linux's")
_LIMITED = """
import resource, sys
kind, size = getattr(resource, sys.argv.pop(1)), int(sys.argv.pop(1))
resource.setrlimit(kind, (size, resource.RLIM_INFINITY))
"""


def limited(kind: str, size: int, code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python code in a process with a limit of memory, bytes."""
    return subprocess.run(
        [sys.executable, "-c", _LIMITED + code, kind, str(size), *arguments],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_a_library_that_finds_no_room_is_no_internal_error(tmp_path: Path) -> None:
    trace = RunBuilder()
    with trace.step(), trace.op("aten::mm"):
        trace.launch(100)
    trace.write(tmp_path / "trace.json")
    done = limited(
        "RLIMIT_AS",
        60 << 20,
        "from trace_doctor.cli import main\nmain()",
        "fix",
        str(tmp_path / "trace.json"),
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == ["trace-doctor: out of memory (--max-memory sets how much to use)"]


@pytest.mark.parametrize("size", [-1, 8 << 30])
def test_an_error_without_a_cause_is_of_memory_only_under_a_limit(size: int) -> None:
    """Code in C that finds no memory can fail without an exception; so can code that is wrong."""
    done = limited("RLIMIT_DATA", size, """
from trace_doctor.memory_limit import ran_out
print(*map(ran_out, (MemoryError(), SystemError("error return without exception set"), SystemError("bad call"))))
""")  # fmt: skip
    assert done.stdout.split() == ["True", str(size > 0), "False"]
