"""A capture told in another way is the same capture: what does not matter changes no verdict."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from trace_doctor import analyze
from trace_doctor.model import Result

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
Event = dict[str, Any]
Document = dict[str, Any]
CAPTURES = (
    "sample_traces/host_sync/simulated/fault",
    "sample_traces/pageable_copies/simulated/fault",
    "sample_traces/dataloader_starvation/cpu/fault",
    "sample_traces/slow_launch_thread/cpu/fault",
    "traces/luatil_torch-profile/trace_05.json.gz",
    "traces/pytorch_benchmark/cce09c0b_trace2.json",
    "traces/facebookresearch_HolisticTraceAnalysis/9e27c16c_with_gpu_user_annotation_step_based_trace_2543932.json.gz",
    "traces/sidnb13_torch-profiling-tutorial/fbffc652_transformer_dc3b0e7228dd_851.1752215573993169006.pt.trace.json.gz",
    "traces/AMD-AGI_TraceLens/h100_Falconsai_nsfw_image_detection__1016002.json.gz",
    "traces/marcalph_kernelforge/transformer_192-222-51-72_4336.1774353536539013415.pt.trace.json.gz",
)
"""loaders, copies, host work, compiled code, inference; with stacks and memory events, and without"""
GPU = ("kernel", "gpu_memcpy", "gpu_memset", "gpu_user_annotation")


def renamed_devices(document: Document) -> Document:
    """Each GPU has another number, in the events, their tracks and the properties."""

    def other(event: Event) -> Event:
        args = dict(event.get("args") or {})
        of_gpu = event.get("cat") in GPU
        if "device" in args and of_gpu:
            args["device"] += 3
        if args.get("Device Type") == 1:
            args["Device Id"] += 3
        made = event | ({"args": args} if args else {})
        return made | {"pid": event["pid"] + 3} if of_gpu and isinstance(event.get("pid"), int) else made

    properties = [p | {"id": p["id"] + 3} for p in document.get("deviceProperties", [])]
    return _with(document, other) | {"deviceProperties": properties}


def shifted(document: Document) -> Document:
    """Recorded an hour later."""
    return _with(document, lambda e: e | {"ts": e["ts"] + 3_600_000_000} if "ts" in e else e)


def shuffled(document: Document) -> Document:
    """The file lists its events in no order."""
    events = document["traceEvents"]
    return document | {"traceEvents": random.Random(1).sample(events, len(events))}


def without_flows(document: Document) -> Document:
    """Arrows from launches to kernels say what correlation ids say already."""
    kept = [
        e for e in document["traceEvents"] if e.get("ph") not in ("s", "t", "f") or e.get("cat") == "fwdbwd"
    ]
    return document | {"traceEvents": kept}


def other_addresses(document: Document) -> Document:
    """Memory lies elsewhere."""

    def elsewhere(event: Event) -> Event:
        args = event.get("args") or {}
        moved = {k: args[k] + (1 << 32) for k in ("Addr", "Data Ptr") if isinstance(args.get(k), int)}
        return event | {"args": args | moved} if moved else event

    return _with(document, elsewhere)


def without_frames(document: Document) -> Document:
    """As with `with_stack=False`."""
    kept = [e for e in document["traceEvents"] if e.get("cat") != "python_function"]
    return document | {"traceEvents": kept, "with_stack": 0}


def _with(document: Document, change: Callable[[Event], Event]) -> Document:
    return document | {"traceEvents": [change(e) for e in document["traceEvents"]]}


def twice(document: Document) -> Document:
    """The same steps once more behind them, with numbers of their own."""
    events = document["traceEvents"]
    timed = [e for e in events if e.get("ph") == "X" and e.get("cat") not in (None, "Trace")]
    marks = [e for e in timed if str(e["name"]).startswith("ProfilerStep#") and e["cat"] == "user_annotation"]
    begin = min(e["ts"] for e in marks)
    later = max(e["ts"] + e["dur"] for e in timed) - begin
    inside = [e for e in timed if e["ts"] >= begin]

    def again(event: Event) -> Event:
        args = event.get("args") or {}
        numbers = {k: args[k] + 500_000 for k in ("correlation", "External id", "Python id") if k in args}
        name = event["name"]
        if name.startswith("ProfilerStep#"):
            name = f"ProfilerStep#{int(name.partition('#')[2]) + len(marks)}"
        return event | {"name": name, "ts": event["ts"] + later, "args": args | numbers}

    return document | {"traceEvents": [*events, *map(again, inside)]}


SAME = [renamed_devices, shifted, shuffled, without_flows, other_addresses]


def _read(path: Path) -> Document:
    packed = path.read_bytes()
    document: Document = json.loads(gzip.decompress(packed) if path.suffix == ".gz" else packed)
    return document


def _documents(name: str, request: pytest.FixtureRequest) -> Document:
    if not name.startswith("sample_traces"):
        return _read(request.getfixturevalue("captures_dir") / name)
    folder = SAMPLES.parent / name
    return _read(min(folder.glob("*.json.gz"), key=lambda p: ("light" not in p.name, p.name)))


def _judged(documents: Sequence[Document], folder: Path) -> Result:
    folder.mkdir()
    for n, document in enumerate(documents):
        (folder / f"rank{n}.json").write_text(json.dumps(document), encoding="utf-8")
    return analyze(folder)


def _verdicts(result: Result) -> list[tuple[Any, ...]]:
    """Findings with their figures, and what every other rule says."""
    found = [
        (
            f.code,
            f.severity,
            f.confidence,
            f.saving and f.saving.time_us_per_step and round(f.saving.time_us_per_step, 2),
            f.saving and f.saving.bytes,
        )
        for f in result.findings
    ]
    return sorted(found, key=str) + sorted((o.code, o.outcome) for o in result.outcomes)


@pytest.fixture(params=CAPTURES, ids=lambda name: "-".join(Path(name).parts[1:])[:40])
def document(request: pytest.FixtureRequest) -> Document:
    return _documents(request.param, request)


def test_what_does_not_matter_changes_nothing(document: Document, tmp_path: Path) -> None:
    verdicts = _verdicts(_judged([document], tmp_path / "as recorded"))
    for change in SAME:
        changed = change(document)
        if changed["traceEvents"] != document["traceEvents"]:
            assert _verdicts(_judged([changed], tmp_path / change.__name__)) == verdicts, change.__name__


def test_without_frames_only_what_needs_them_changes(document: Document, tmp_path: Path) -> None:
    """A finding above info that goes is named by a rule that says it could not look, or one of another rule that stands in."""
    if all(e.get("cat") != "python_function" for e in document["traceEvents"]):
        pytest.skip("recorded without Python frames")
    whole = _judged([document], tmp_path / "whole")
    less = _judged([without_frames(document)], tmp_path / "less")
    before, after = ({f.code for f in r.findings if f.severity != "info"} for r in (whole, less))
    outcomes = {o.code: o for o in less.outcomes}
    for code in before - after:
        fired = outcomes[code].outcome == "fired"
        assert fired or (outcomes[code].outcome in ("skipped", "undecided") and outcomes[code].reason), code
    assert after <= before | {"TD202", "TD203"}


@pytest.mark.parametrize("name", CAPTURES[:3] + CAPTURES[4:6], ids=lambda name: Path(name).name[:20])
def test_the_same_steps_twice_have_the_same_shares(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Every finding above info is there again, and costs the same but for what the last step has no other behind it to overlap with."""
    document = _documents(name, request)
    once, again = _judged([document], tmp_path / "once"), _judged([twice(document)], tmp_path / "again")
    before, after = (
        {f.code: f.saving and f.saving.share_of_step for f in r.findings if f.severity != "info"}
        for r in (once, again)
    )
    assert after.keys() == before.keys()
    for code, share in before.items():
        assert after[code] == (share and pytest.approx(share, abs=0.03)), code


def test_ranks_have_other_numbers(tmp_path: Path) -> None:
    """What is said of rank 0 is said of rank 1, and the other way round."""
    documents = [_read(p) for p in sorted((SAMPLES / "straggler/cpu/fault").glob("*.light.json.gz"))]
    turned = [
        d | {"distributedInfo": d["distributedInfo"] | {"rank": 1 - d["distributedInfo"]["rank"]}}
        for d in documents
    ]
    result, other = _judged(documents, tmp_path / "recorded"), _judged(turned, tmp_path / "turned")
    assert _verdicts(other) == _verdicts(result)
    [late], [then] = ([f for f in r.findings if f.code == "TD602"] for r in (result, other))
    assert late.rank is not None
    assert then.rank == 1 - late.rank
