"""Dumps of the flight recorder: which files are found, in which forms, and what a hostile one can do."""

from __future__ import annotations

import gzip
import json
import pickle
import random
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from tests.warm_commands import warm

from trace_doctor.errors import DamagedCapture, NotACapture, TraceDoctorError
from trace_doctor.flight_recorder import FlightDump
from trace_doctor.isolation import OutOfMemory
from trace_doctor.loaders.discover import discover
from trace_doctor.loaders.flight_recorder import load_flight_dump, read_flight_dump
from trace_doctor.testing import FlightBuilder, RunBuilder


def _dump(rank: int = 0, size: int = 2) -> FlightBuilder:
    b = FlightBuilder(rank, size)
    for _ in range(3):
        b.call("all_reduce", 1024)
    b.call("_all_gather_base", (10, 20), state="started")
    return b


def _as_json(data: dict[str, Any]) -> str:
    """As the handlers of a process write it: sorted, without frames, no time is 0, no entries are left out."""
    entries = [
        {k: 0 if v is None else v for k, v in e.items() if k != "frames"}
        | {"process_group": [*e["process_group"]]}
        for e in data["entries"]
    ]
    return json.dumps({**data, **({"entries": entries} if entries else {})}, sort_keys=True)


def test_dumps_are_found_by_what_they_hold_and_their_ranks_by_the_number_behind_any_prefix(
    tmp_path: Path,
) -> None:
    for name, rank in (
        ("comm_lib_trace_rank_3", 3),
        ("old/nccl_trace_rank_2", 2),
        ("own/my.prefix-17", 17),
        ("z/fr1.pkl", 1),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        _dump(rank, 20).write(tmp_path / name)
    (tmp_path / "h").mkdir()
    (tmp_path / "h/rank4.json").write_text(_as_json(_dump(4, 20).data()))
    (tmp_path / "h/rank5.json.gz").write_bytes(
        gzip.compress(_as_json(FlightBuilder(5, 20).data() | {"entries": []}).encode())
    )
    found = discover([tmp_path]).found
    assert [(f.display, f.kind, f.rank, f.rank_how) for f in found] == [
        ("comm_lib_trace_rank_3", "flight_recorder", 3, "file name"),
        ("h/rank4.json", "flight_recorder", 4, "file name"),
        ("h/rank5.json.gz", "flight_recorder", 5, "file name"),
        ("old/nccl_trace_rank_2", "flight_recorder", 2, "file name"),
        ("own/my.prefix-17", "flight_recorder", 17, "file name"),
        ("z/fr1.pkl", "flight_recorder", 1, "file name"),
    ]  # fmt: skip


def test_a_trace_that_names_its_process_groups_stays_a_trace(tmp_path: Path) -> None:
    b = RunBuilder(rank=0, world_size=2)
    with b.step(), b.op("aten::mm"):
        b.launch(10)
    path = tmp_path / "rank0.json"
    b.write(path)
    trace = json.loads(path.read_text())
    trace["distributedInfo"]["pg_config"] = [{"pg_name": "0", "pg_desc": "default_pg", "ranks": [0, 1]}]
    path.write_text(json.dumps({"version": 1, **trace}))
    assert [f.kind for f in discover([tmp_path]).found] == ["trace"]


def test_json_and_pickle_of_one_dump_tell_the_same_but_for_stacks(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_text(_as_json(_dump().data()))
    _dump().write(tmp_path / "dump0")
    one, other = (load_flight_dump(tmp_path / name, name) for name in ("rank0.json", "dump0"))
    assert [e.stack[0].line for e in other.entries] == [41] * 4 and not any(e.stack for e in one.entries)
    assert one.groups == other.groups == {("0", "default_pg"): (0, 1)}
    for a, b in zip(one.entries, other.entries, strict=True):
        assert (a.record_id, a.group, a.sequence, a.kind, a.backend, a.elements_in, a.elements_out, a.dtypes, a.state) == (
            b.record_id, b.group, b.sequence, b.kind, b.backend, b.elements_in, b.elements_out, b.dtypes, b.state,
        )  # fmt: skip


def test_what_is_not_the_users_is_left_out_of_the_stack(tmp_path: Path) -> None:
    data = _dump().data()
    torch = {
        "name": "all_reduce",
        "filename": "/usr/lib/python3/dist-packages/torch/distributed/distributed_c10d.py",
        "line": 3245,
    }
    data["entries"][0]["frames"].insert(0, torch)
    data["entries"][1]["frames"] = [torch]
    (tmp_path / "dump0").write_bytes(pickle.dumps(data))
    stacks = [e.stack for e in load_flight_dump(tmp_path / "dump0", "dump0").entries]
    assert [f.file for f in stacks[0]] == ["train.py"] and [f.line for f in stacks[1]] == [3245]


class _Spy:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.write_text, (Path("executed"), "yes"))


def test_a_dump_that_asks_for_code_gets_one_line_and_nothing_is_executed(tmp_path: Path) -> None:
    (tmp_path / "comm_lib_trace_rank_0").write_bytes(pickle.dumps({**_dump().data(), "x": _Spy()}))
    done = subprocess.run(
        [*warm(), "analyze", "comm_lib_trace_rank_0"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (
        done.returncode == 2
        and done.stderr.count("\n") <= 2
        and "Nothing of it was executed" in done.stderr.replace("\n", " ")
    )
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize(
    ("data", "error", "says"),
    [
        (pickle.dumps({"pg_config": {}, "entries": 7}), DamagedCapture, "its entries are a int"),
        (pickle.dumps({"pg_config": {}, "entries": [7, {}, None]}), DamagedCapture, "none of its 3 entries can be read"),
        (pickle.dumps({"weights": [1]}), NotACapture, "it has no process groups"),
        (pickle.dumps(_dump().data())[:-200], DamagedCapture, "cut off or damaged"),
        (pickle.dumps(_dump().data()) * 2, DamagedCapture, "goes on after"),
        (_as_json(_dump().data()).encode()[:-50], DamagedCapture, "cut off or damaged"),
        (b'{"pg_config": ' + b"[" * 100_000, DamagedCapture, "cut off or damaged"),
    ],
)  # fmt: skip
def test_damage_is_told_in_one_line(tmp_path: Path, data: bytes, error: type[Exception], says: str) -> None:
    (tmp_path / "dump0").write_bytes(data)
    with pytest.raises(error, match=says) as raised:
        load_flight_dump(tmp_path / "dump0", "dump0")
    assert "\n" not in str(raised.value)


def test_numbers_and_texts_that_cannot_be_are_no_more_than_unknown(tmp_path: Path) -> None:
    data = _dump().data()
    data["entries"][0] |= {
        "collective_seq_id": 1 << 200, "is_p2p": True, "input_sizes": [[1 << 62, 1 << 62], "x", [None]], "time_created_ns": -5, "frames": 3,
        "state": ["?"], "timeout_ms": float("nan"), "profiling_name": "send ?->" + "9" * 5000, "process_group": ["g" * 5000, 5],
    }  # fmt: skip
    data["pg_config"]["0"]["ranks"] = [0, "1", None]
    (tmp_path / "dump0").write_bytes(pickle.dumps(data))
    entry = load_flight_dump(tmp_path / "dump0", "dump0").entries[0]
    assert (entry.sequence, entry.created_ns, entry.timeout_ms, entry.state, entry.stack) == (
        -1,
        0,
        0,
        "scheduled",
        (),
    )
    assert entry.elements_in < 1 << 62 and len(entry.group[0]) == 500 and len(entry.kind) <= 500


def test_fuzz_any_bytes_are_a_dump_or_one_line(tmp_path: Path) -> None:
    path, draw = tmp_path / "dump0", random.Random(5)
    for whole in (pickle.dumps(_dump().data(), protocol=2), _as_json(_dump().data()).encode()):
        read = 0
        for _ in range(400):
            data = bytearray(whole)
            for _ in range(draw.randint(1, 6)):
                data[draw.randrange(len(data))] = draw.randrange(256)
            path.write_bytes(
                bytes(data[: draw.choice((len(data), len(data), draw.randrange(len(data)))) or 1])
            )
            try:
                dump = read_flight_dump(path, "dump0", most=1 << 20)
            except (TraceDoctorError, OutOfMemory, MemoryError) as error:
                assert "\n" not in str(error)
            else:
                assert isinstance(dump, FlightDump)
                read += 1
        assert read > 10


_REAL = """
    import os, sys, torch, torch.distributed as dist
    from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    def step():
        dist.all_reduce(torch.ones(4, 8))
    step()
    open("comm_lib_trace_rank_0", "wb").write(_dump_fr_trace())
    text = _dump_fr_trace_json()
    open("j0.json", "wb").write(text if isinstance(text, bytes) else text.encode())
"""


@pytest.mark.torch
def test_what_this_pytorch_writes(tmp_path: Path) -> None:
    pytest.importorskip("torch._C._distributed_c10d", reason="PyTorch without a flight recorder")
    (tmp_path / "train.py").write_text(textwrap.dedent(_REAL))
    env = {"PATH": "/usr/bin:/bin", "TORCH_FR_BUFFER_SIZE": "20", "OMP_NUM_THREADS": "1"}
    subprocess.run([sys.executable, "train.py"], cwd=tmp_path, env=env, check=True, timeout=120)
    found = discover([tmp_path]).found
    assert [f.display for f in found] == ["comm_lib_trace_rank_0", "j0.json"]
    for f in found:
        [entry] = load_flight_dump(f.path, f.display).entries
        assert (entry.kind, entry.backend, entry.sequence, entry.elements_in) == ("all_reduce", "gloo", 1, 32)
        assert (entry.group, entry.dtypes, entry.created_ns > 0) == (
            ("0", "default_pg"),
            ("Float", "Float"),
            True,
        )
        assert not entry.stack or (entry.stack[0].function, entry.stack[0].line) == ("step", 8)
