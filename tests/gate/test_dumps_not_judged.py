"""Flight recorder dumps of which a part could not be read or compared: their check has not passed."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trace_doctor.testing import FlightBuilder
from trace_doctor_rules.comms import _flight_cases as cases

Run = Callable[..., Any]


def _write(folder: Path, ranks: tuple[FlightBuilder, ...]) -> None:
    for b in ranks:
        b.write(folder / f"comm_lib_trace_rank_{b.rank}")


@pytest.mark.parametrize("number", ["11", -5, 1.5, None, 1 << 70])
def test_a_hang_behind_a_number_that_is_none(tmp_path: Path, run: Run, number: object) -> None:
    """A call of rank 0 that cannot be compared with any of rank 1 may be the one that hangs."""
    _write(tmp_path, cases.job(2))
    path = tmp_path / "comm_lib_trace_rank_0"
    dump = pickle.loads(path.read_bytes())
    dump["entries"][-1] |= {"collective_seq_id": number, "state": "scheduled", "retired": False}
    path.write_bytes(pickle.dumps(dump))
    done = run("check", tmp_path)
    assert done.code == 3, done.out
    assert "entries in the dump of rank 0 were not read" in " ".join(done.out.split())


@pytest.mark.parametrize("name", ["comm_lib_trace_rank_0 (copy)", "comm_lib_trace_rank_1000000000000000000"])
def test_a_dump_beside_a_sound_job_that_no_rule_could_judge(tmp_path: Path, run: Run, name: str) -> None:
    _write(tmp_path, cases.job(2))
    assert run("check", tmp_path).code == 0
    cases.hang(1, size=2)[0].write(tmp_path / name)
    done = run("check", tmp_path)
    assert done.code == 3, done.out
    assert f"no rule could judge {name}" in " ".join(done.out.split())
