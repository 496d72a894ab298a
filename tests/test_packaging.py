"""What a light base install promises: nothing heavy is imported, nothing talks to the network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("torch", "hta", "plotly", "pandas", "libcst")


def imported(code: str) -> set[str]:
    probe = f"import sys\n{code}\nprint(*{{m.partition('.')[0] for m in sys.modules}})"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split())


@pytest.mark.parametrize(
    "code",
    [
        "import trace_doctor",
        "import trace_doctor; trace_doctor.Rule, trace_doctor.Result",
        "from typer.testing import CliRunner\nfrom trace_doctor.cli.app import application\n"
        "assert CliRunner().invoke(application(), ['--help']).exit_code == 0\n"
        "assert CliRunner().invoke(application(), ['rules']).exit_code == 0",
    ],
    ids=["import", "names", "cli"],
)
def test_nothing_heavy_is_imported(code: str) -> None:
    assert imported(code).isdisjoint(HEAVY)


def test_an_analysis_needs_no_torch_and_opens_no_socket(tmp_path: Path) -> None:
    from trace_doctor.testing import RunBuilder

    b = RunBuilder()
    for _ in range(3):
        with b.step(), b.op("aten::mm"):
            b.launch(50)
    b.write(tmp_path / "trace.json")
    code = f"""
import socket
def refuse(*a, **k): raise AssertionError("network")
socket.socket.connect = refuse; socket.create_connection = refuse; socket.getaddrinfo = refuse
import trace_doctor
result = trace_doctor.analyze({str(tmp_path)!r})
assert result.inputs[0].events
from trace_doctor.reporters import render
assert render(result, "html")
"""
    assert imported(code).isdisjoint({"torch", "hta", "plotly"})
