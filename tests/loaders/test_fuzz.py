"""Any cut and any wrong bytes: a Run or one of our errors, never a crash, never an invented event."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from trace_doctor.errors import TraceDoctorError
from trace_doctor.loaders.kineto.trace import load_trace
from trace_doctor.run import Run

EVENTS = [
    {
        "ph": "X",
        "cat": "cpu_op",
        "name": f'op{i} "quoted" C:\\x <{i}>',
        "pid": 1,
        "tid": 2,
        "ts": 10 * i + 1,
        "dur": 3.5,
        "args": {"External id": i, "Input Dims": [[1, 2], []], "l": [{"name": i}, {"name": 2}]},
    }
    for i in range(40)
]
HEAD = {"schemaVersion": 1, "deviceProperties": [{"id": 0, "name": "V100"}], "distributedInfo": {"rank": 1}}
WHOLE = (
    json.dumps(HEAD)[:-1]
    + ', "traceEvents": [\n'
    + ",\n".join(map(json.dumps, EVENTS))
    + '\n], "traceName": "t"}'
).encode()


def load(content: bytes) -> Run | None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_bytes(content)
        try:
            run = load_trace(path, "trace.json")
        except TraceDoctorError as refusal:
            assert "\n" not in str(refusal)
            return None
    run.args(range(len(run)))
    return run


def test_a_cut_anywhere_gives_exactly_the_complete_events() -> None:
    for cut in range(0, len(WHOLE), 7):
        complete = sum(WHOLE.find(json.dumps(e).encode()) + len(json.dumps(e)) <= cut for e in EVENTS)
        run = load(WHOLE[:cut])
        found = [] if run is None else [run.text(i) for i in range(len(run))]
        assert found == [e["name"] for e in EVENTS[:complete]], cut
        if run is not None:
            assert run.damage.truncated
            assert run.damage.lost == 0


@given(st.lists(st.tuples(st.integers(0, len(WHOLE) - 1), st.binary(max_size=3)), min_size=1, max_size=6))
@settings(max_examples=300, deadline=None)
def test_wrong_bytes_cost_only_the_events_they_are_in(changes: list[tuple[int, bytes]]) -> None:
    broken = WHOLE
    for position, replacement in changes:
        broken = broken[:position] + replacement + broken[position + 1 :]
    run = load(broken)
    if run is not None:
        untouched = [e["name"] for e in EVENTS if b",\n" + json.dumps(e).encode() + b",\n" in broken]
        found = [run.text(i) for i in range(len(run))]
        assert len(found) <= len(EVENTS)
        if b'"traceEvents": [' in broken:
            missing = set(untouched) - set(found)
            assert len(missing) <= len(changes), "a fault hides at most the event behind it"


@given(st.integers(0, 2000), st.binary(max_size=3))
@settings(max_examples=100, deadline=None)
def test_wrong_bytes_in_a_gzip_file_never_crash(position: int, replacement: bytes) -> None:
    packed = gzip.compress(WHOLE)
    position %= len(packed)
    load(packed[:position] + replacement + packed[position + 1 :])
