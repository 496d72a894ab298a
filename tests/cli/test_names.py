"""Names of files reach a terminal and a log within their line, whichever command says them."""

from __future__ import annotations

import io
import logging
import os
import re
import subprocess
import sys
from contextlib import redirect_stderr
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from made_captures import healthy
from warm_commands import warm

from trace_doctor.cli.console import Console
from trace_doctor.cli.process import PrintableFormatter
from trace_doctor.model import Finding, Fix, Input, Result, TorchVersion

NAME = "a\nFORGED b\r\x1b]0;FORGED\x07\u2028FORGED\x85FORGED"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="names that other systems refuse")

RESULT = Result(
    inputs=[Input(path=f"{NAME}.pickle", kind="snapshot", torch_version=TorchVersion(min="2.1", max="2.1"))],
    findings=[
        Finding(
            id="TD101-1", code="TD101", name="dataloader-starvation", title=NAME, severity="info", confidence="high",
            message=NAME, fingerprint="f",
            fixes=[Fix(title=NAME, kind="patch", codemod="dataloader-args", params={"num_workers": 4})],
        )
    ],
)  # fmt: skip
SCRIPT = "from torch.utils.data import DataLoader\nfor x in DataLoader([1]):\n    f(x).backward()\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Captures, a result, scripts and configurations, all of that name."""
    healthy().write(tmp_path / f"{NAME}.json")
    (tmp_path / f"{NAME}.result").write_bytes(RESULT.to_json())
    (tmp_path / f"{NAME}.toml").write_text('fail_on = "never"\n')
    (tmp_path / f"{NAME}.bad.toml").write_text("[[")
    (tmp_path / f"{NAME}.broken.json").write_text('{"traceEvents": [' * 3)
    (tmp_path / f"{NAME}.py").write_text(SCRIPT)
    (tmp_path / f"{NAME}.exit.py").write_text("print(1)\n")
    (tmp_path / f"{NAME}.unparsed").mkdir()
    (tmp_path / f"{NAME}.unparsed" / f"{NAME}.py").write_text("def (\n" + SCRIPT)
    return tmp_path


COMMANDS = [
    *(f"analyze @.json -o {fmt}=@.{fmt}" for fmt in ("text", "html", "json", "markdown", "sarif", "junit", "github")),
    "analyze @.json -o perfetto=@.gz", "analyze @.broken.json", "analyze @.nowhere", "analyze @.json -o html=@/@.html",
    "analyze @.json --source @.nowhere", "analyze @.json --config @.bad.toml -o text", "analyze @.json -v -o text",
    "analyze @.json -o json=@.py", "analyze @.json @.broken.json -o text", "analyze @.json -o @", "@", "@.json",
    "check @.json", "check @.json --write-baseline @.base", "check @.json --baseline @.nowhere", "check @.json --baseline @.py",
    "config --config @.toml", "report @.result -o html=@.html", "report @.result", "report @.py",
    "fix @.result --source .", "fix @.result --source @.unparsed -v", "fix @.result --script @.py --patch @.patch",
    "fix @.result --script @.py --apply --allow-dirty --unsafe-fixes", "fix @.result --script @.nowhere",
    "fix @.result --script @.py --select @", "fix @.json --source @.unparsed", "fix @.result --script @.unparsed/@.py",
    "verify @.result @.result -o json=@.json2", "verify @.nowhere @.result", "verify @.py @.result", "diff @.result @.result",
    "diff @.json @.json -o html=@.diff", "view @.py", "view @.result --trace @.nowhere", "rule @",
    "record --out @.logs -- @.nowhere", "record --out @.logs -- python @.exit.py", "record --out @.py -- python @.exit.py",
    "treat --source @.nowhere -- python @.exit.py", "treat --source . -- python @.nowhere.py",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_no_name_begins_a_line(folder: Path, command: str) -> None:
    env = {k: v for k, v in os.environ.items() if not k.startswith("TRACE_DOCTOR")} | {"COLUMNS": "1000"}
    words = [word.replace("@", NAME) for word in command.split()]
    done = subprocess.run([*warm(), *words], cwd=folder, env=env, capture_output=True, check=False)
    for stream in (done.stdout, done.stderr):
        assert not re.findall(
            rb"(?m)^ *FORGED.*|[\x1b\r\x07\x85].*|\xe2\x80\xa8", stream.replace(b"\xc2\x85", b"\r")
        )
    assert b"internal error" not in done.stderr


@given(st.lists(st.text(), min_size=1, max_size=3))
@example([NAME, NAME])
def test_each_thing_that_is_said_is_one_line(texts: list[str]) -> None:
    shown = io.StringIO()
    with redirect_stderr(shown):
        Console().hint(*texts)
    record = logging.LogRecord("x", logging.INFO, "x", 1, "%s", (texts[0],), None)
    for line in [
        *shown.getvalue().removesuffix("\n").split("\n"),
        PrintableFormatter("%(message)s").format(record),
    ]:
        assert all(c.isprintable() for c in line)
    assert shown.getvalue().count("\n") == len(texts)
