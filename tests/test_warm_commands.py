"""A command in a fork is, to whoever starts it, what it is in an interpreter of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from warm_commands import FRESH, warm

from trace_doctor.testing import RunBuilder

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="no forks here")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    b = RunBuilder()
    with b.step(), b.op("aten::mm"):
        b.launch(1000)
    b.write(tmp_path / "träce.json")
    (tmp_path / "trace-doctor.toml").write_text('fail-on = "never"\n')
    return tmp_path


@pytest.mark.parametrize(
    ("variable", "closed"),
    [("LC_ALL=C", ""), ("NO=1", "<&-"), ("PYTHONUNBUFFERED=1", ">&-"), ("PYTHONIOENCODING=ascii", "2>&-")],
)
def test_streams_folder_environment_and_exit_code(folder: Path, variable: str, closed: str) -> None:
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder), **dict([variable.split("=")])}
    for command in ("check träce.json -o text", "check -", "no-such"):
        line = f'"$@" {command} {closed or "< träce.json"}'
        first, second = (
            subprocess.run(["sh", "-c", line, "sh", *begin], cwd=folder, env=environment, capture_output=True)
            for begin in (warm(), FRESH)
        )
        assert (first.returncode, first.stdout, first.stderr) == (
            second.returncode,
            second.stdout,
            second.stderr,
        )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_signal_to_the_client_ends_the_command(folder: Path, number: signal.Signals) -> None:
    (folder / "train.py").write_text("import os, time\nprint(os.getppid(), flush=True)\ntime.sleep(600)\n")
    process = subprocess.Popen(
        [*warm(), "record", "--", sys.executable, "train.py"], cwd=folder, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout
    command = int(process.stdout.readline())
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode not in (0, None)
    for _ in range(600):
        if not Path(f"/proc/{command}").exists():
            return
        time.sleep(0.1)
    pytest.fail("it goes on")
