"""The real captures: public data of many origins, kept beside the checkout and never part of the project.

A test with an argument `trace_file` or `snapshot_file` runs for every third of them, another third in each file of
tests, or for each with `TRACE_DOCTOR_CAPTURES=all`; `captures_dir` is their folder.
`trace_facts` is the evidence of each trace. Tests of one file run one after another, so that they share it.
"""

from __future__ import annotations

import os
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from trace_doctor.capture import Capture
from trace_doctor.errors import NotACapture
from trace_doctor.evidence.base import Facts
from trace_doctor.loaders.kineto.trace import load_trace

CAPTURES = Path(__file__).resolve().parents[2] / "shared"
settings.register_profile("unhurried", deadline=None)  # how long an example takes is no verdict on the code
settings.load_profile("unhurried")
_ABSENT = "the real captures are not there (../shared, beside the checkout)"


@pytest.fixture(scope="session", autouse=True)
def _state_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Journals of edits do not go to the folder of whoever runs the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def captures_dir() -> Path:
    if not (CAPTURES / "traces").is_dir():
        pytest.skip(_ABSENT)
    return CAPTURES


@pytest.fixture(scope="session")
def trace_facts(trace_file: Path) -> Facts:
    """Skips the captures of other tools."""
    try:
        return Facts(Capture(0, load_trace(trace_file, trace_file.name)))
    except NotACapture as why:
        pytest.skip(f"no PyTorch trace: {why}")


def pytest_configure() -> None:
    """Programs that tests start hear Ctrl-C and a closed terminal, also in the background of a shell and under nohup."""
    for number, usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, usual)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    for argument, kind, suffixes in (
        ("trace_file", "traces", (".json", ".json.gz")),
        ("snapshot_file", "snapshots", (".pickle", ".pkl")),
    ):
        if argument in metafunc.fixturenames:
            folder = CAPTURES / kind
            files = sorted(p for p in folder.rglob("*") if p.name.endswith(suffixes))
            if os.environ.get("TRACE_DOCTOR_CAPTURES") != "all":
                files = files[zlib.crc32(metafunc.module.__name__.encode()) % 3 :: 3]
            absent = [pytest.param(None, marks=pytest.mark.skip(reason=_ABSENT), id="absent")]
            ids = [p.relative_to(folder).as_posix() for p in files] or None
            metafunc.parametrize(argument, files or absent, ids=ids, scope="session")
