"""No secret of a command line or an environment in anything that is written or said, from start to end."""

from __future__ import annotations

import gzip
import os
import subprocess
import sys
from pathlib import Path

import pytest
from warm_commands import warm
from without_compiler import WITHOUT_COMPILER

SECRETS = ("swordfish-7Kd92mXq", "moonflower-4f8d2c9b", "hunter2hunter2")
ARGUMENTS = [
    "--password", SECRETS[0], "--extra", f"Authorization: Bearer {SECRETS[0]}", f"https://me:{SECRETS[2]}@host/?sig={SECRETS[0]}",
    "-p", SECRETS[2], f"-p{SECRETS[2]}", f'{{"token": "{SECRETS[2]}"}}', f"MY_KEY={SECRETS[0]}",
]  # fmt: skip
SECRETIVE = {"HF_TOKEN": SECRETS[1], "DATABASE_PASSWORD": SECRETS[1]}
TRAINS = """
import sys
import torch
@torch.compile(backend="eager")
def scaled(x, token):
    return x * 2 if token.startswith("s") else x
scaled(torch.ones(2), sys.argv[2])
model = torch.compile(torch.nn.Linear(8, 8), backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(40):
    model(torch.randn(2, 8)).square().mean().backward()
    optimizer.step()
"""
COMPILES_NOTHING = f"""{WITHOUT_COMPILER}
import torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(20):
    model(torch.randn(2, 8)).square().mean().backward()
    optimizer.step()
"""
FAILS = "import os, sys\nraise ValueError(' '.join(sys.argv + list(os.environ.values())))\n"
REFUSES = "import argparse\nargparse.ArgumentParser().parse_args()\n"


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[bytes]:
    environment = {**os.environ, **SECRETIVE, "OMP_NUM_THREADS": "1"}
    return subprocess.run([*warm(), *command], cwd=folder, capture_output=True, env=environment, timeout=300)


def told(data: bytes) -> list[str]:
    """The secrets in some bytes, by any six characters of theirs."""
    return [s for s in SECRETS if any(s[i : i + 6].encode() in data for i in range(len(s) - 5))]


def bytes_below(folder: Path) -> dict[str, bytes]:
    files = {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return {name: gzip.decompress(data) if name.endswith(".gz") else data for name, data in files.items()}


@pytest.mark.torch
def test_nothing_of_a_recording_tells_one(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(TRAINS)
    done = run(tmp_path, "record", "-v", "-v", "--", sys.executable, "train.py", *ARGUMENTS)
    assert done.returncode == 0, done.stderr
    files = bytes_below(tmp_path / "logs")
    assert {"rank0.light.json.gz", "rank0.detailed.json.gz", "command.txt", "environment.json"} <= set(files)
    assert any("torch_trace" in name for name in files)
    assert {name: told(data) for name, data in files.items() if told(data)} == {}
    assert told(done.stdout + done.stderr) == []


ENDS_BY_ITS_OWN = f"""{COMPILES_NOTHING}
raise type("NoAccessWith" + sys.argv[2].replace("-", ""), (LookupError,), {{"__module__": "builtins"}})(sys.argv[2])
"""
BREAKS_THE_PROFILER = f"""import sys, torch, torch.profiler
class Broken:
    def __init__(self, *_, **__):
        raise RuntimeError("cannot log in with " + sys.argv[2])
torch.profiler.profiler._KinetoProfile = Broken
{COMPILES_NOTHING}"""
BREAKS_THE_START = f"""import sys, torch
def broken(*_):
    raise KeyError("cannot log in with " + sys.argv[2])
torch.utils.data.get_worker_info = broken
{COMPILES_NOTHING}"""


@pytest.mark.torch
@pytest.mark.parametrize(
    ("program", "said"),
    [
        (ENDS_BY_ITS_OWN, "the script ended with LookupError"),
        (BREAKS_THE_PROFILER, "switched itself off: RuntimeError at agent/tracing.py:"),
        (BREAKS_THE_START, "switched itself off: KeyError at agent/session.py:"),
    ],
)
def test_nor_what_ended_the_script_or_the_recorder(tmp_path: Path, program: str, said: str) -> None:
    """Names of types and texts of exceptions are the script's."""
    pytest.importorskip("torch")
    (tmp_path / "train.py").write_text(program)
    done = run(tmp_path, "record", "-v", "-v", "--", sys.executable, "train.py", *ARGUMENTS)
    files = bytes_below(tmp_path / "logs")
    assert said in files["recording.json"].decode()
    assert {name: told(data) for name, data in files.items() if told(data)} == {}
    said_by_us = [line for line in done.stderr.splitlines() if b"trace-doctor" in line]
    assert told(b"\n".join(said_by_us)) == []


@pytest.mark.parametrize("program", [FAILS, REFUSES])
def test_nor_why_a_run_of_treat_failed(tmp_path: Path, program: str) -> None:
    (tmp_path / "train.py").write_text(program)
    done = run(tmp_path, "treat", "--", sys.executable, "train.py", *ARGUMENTS)
    assert done.returncode == 2
    assert b"***" in done.stderr
    assert told(done.stdout + done.stderr) == []
    assert {name: told(data) for name, data in bytes_below(tmp_path).items() if told(data)} == {}


@pytest.mark.parametrize("command", ["record", "treat"])
@pytest.mark.parametrize(
    "started",
    [
        [f"MY_KEY={SECRETS[0]}", "python"],
        [SECRETS[2]],
        ["python", SECRETS[0]],
        ["python", "-cIMPORTANT_SECRET"],
    ],
)
def test_nor_why_one_cannot_be_started(tmp_path: Path, command: str, started: list[str]) -> None:
    done = run(tmp_path, command, "--", *started)
    assert done.returncode != 0
    assert told(done.stdout + done.stderr) == []
    assert b"-cIMPORTANT_SECRET" not in b"\n".join([done.stderr, *bytes_below(tmp_path).values()])
