"""Less recorded: rules lose detail or abstain. They do not turn round:
what is missing is neither an alarm nor an all-clear.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trace_doctor import analyze
from trace_doctor.config import defaults
from trace_doctor.model import Result
from trace_doctor.registry import all_rules

SAMPLES = Path(__file__).resolve().parents[2] / "sample_traces"
CAPTURES = sorted({p.parent for p in SAMPLES.glob("*/*/*/*.json.gz")})
YIELDS = {rule.code: set(rule.yields_to) for rule in all_rules()}

Event = dict[str, Any]
Document = dict[str, Any]


def without_stacks(document: Document) -> Document:
    """As with `with_stack=False`."""
    return _kept(document, lambda e: e.get("cat") != "python_function") | {"with_stack": 0}


def without_shapes(document: Document) -> Document:
    """As with `record_shapes=False`."""
    shapes = {"Input Dims", "Input type", "Input Strides", "Concrete Inputs"}

    def bare(event: Event) -> Event:
        args = event.get("args", {})
        return (
            event | {"args": {k: v for k, v in args.items() if k not in shapes}}
            if shapes & args.keys()
            else event
        )

    return document | {"traceEvents": [bare(e) for e in document["traceEvents"]], "record_shapes": 0}


def without_memory(document: Document) -> Document:
    """As with `profile_memory=False`."""
    return _kept(document, lambda e: e.get("name") != "[memory]") | {"profile_memory": 0}


def without_annotations(document: Document) -> Document:
    """Without `record_function`, `prof.step()` and the marks of loader and optimizer."""
    return _kept(document, lambda e: e.get("cat") not in ("user_annotation", "gpu_user_annotation"))


def _kept(document: Document, keep: Callable[[Event], bool]) -> Document:
    return document | {"traceEvents": [e for e in document["traceEvents"] if keep(e)]}


ABLATIONS = [without_stacks, without_shapes, without_memory, without_annotations]


def _alarms(result: Result) -> set[str]:
    """Codes of findings above info, without those of the capture itself, which should say what is missing."""
    return {f.code for f in result.findings if f.severity != "info" and not f.code.startswith("TD0")}


def _declared_clean(result: Result) -> set[str]:
    return {o.code for o in result.outcomes if o.outcome == "passed" and not o.refers_to}


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda p: "-".join(p.parts[-3:]))
def test_what_is_missing_is_no_alarm_and_no_all_clear(capture: Path, tmp_path: Path) -> None:
    config = defaults()
    known = _alarms(analyze(capture, config=config))
    # Where the rule that owns a fault cannot tell any more, one that yields to it may speak of the same time.
    allowed = known | {code for code, owners in YIELDS.items() if owners & known}
    traces = {p.name: json.loads(gzip.decompress(p.read_bytes())) for p in sorted(capture.glob("*.json.gz"))}
    snapshots = list(capture.glob("*.pickle*"))
    for ablate in ABLATIONS:
        less = {name: ablate(document) for name, document in traces.items()}
        kept = [] if ablate is without_memory else snapshots
        if kept == snapshots and all(less[n]["traceEvents"] == t["traceEvents"] for n, t in traces.items()):
            continue
        folder = tmp_path / ablate.__name__
        folder.mkdir()
        for name, document in less.items():
            (folder / name.removesuffix(".gz")).write_text(json.dumps(document), encoding="utf-8")
        for snapshot in kept:
            shutil.copy(snapshot, folder)
        result = analyze(folder, config=config)
        assert _alarms(result) <= allowed, ablate.__name__
        cleared = known & _declared_clean(result)
        assert not cleared, ablate.__name__
