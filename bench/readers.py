"""One reading of one trace, as a process of its own: `python bench/readers.py NAME TRACE`.

Run by `compare.py`, with the interpreter of whoever reads. Standard library only at the top, so that both the project's
environment and that of the peers can run it. Every reader keeps every event, unless its title says otherwise.
"""

from __future__ import annotations

import gc
import importlib.metadata
import importlib.util
import json
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Reader:
    """`needs` are import names; `distribution` is where the version is looked up."""

    title: str
    read: Callable[[Path], None]
    ours: bool = False
    needs: tuple[str, ...] = ()
    distribution: str = ""
    snapshots: bool = False
    """reads memory snapshots, not traces"""

    def installed(self) -> bool:
        return all(importlib.util.find_spec(name) for name in self.needs)

    def version(self) -> str:
        return importlib.metadata.version(self.distribution) if self.distribution else ""


def _bytes(path: Path) -> bytes:
    import gzip

    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def load(path: Path) -> None:
    """With the memory allocator set up as the commands set it up."""
    from trace_doctor.tuning import tune

    tune()
    from trace_doctor.capture import Capture
    from trace_doctor.evidence.base import Facts
    from trace_doctor.evidence.trace.launches import Launches
    from trace_doctor.evidence.trace.nesting import Nesting
    from trace_doctor.loaders.kineto.trace import load_trace

    facts = Facts(Capture(rank=0, run=load_trace(path, path.name)))
    _ = facts[Nesting], facts[Launches]


def analyze(path: Path) -> None:
    command = [
        sys.executable,
        "-c",
        "from trace_doctor.cli import main; main()",
        "analyze",
        str(path.resolve()),
    ]
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*command, "--no-progress"], cwd=folder, check=True)
        if not (Path(folder) / "trace-doctor-report.html").stat().st_size:
            raise SystemExit("no report was written")


def snapshot(path: Path) -> None:
    from trace_doctor.loaders.snapshot.unpickle import load_snapshot

    load_snapshot(path, path.name)


def unpickle(path: Path) -> None:
    """What everybody does: it runs whatever the file says."""
    with path.open("rb") as file:
        pickle.load(file)


def _with_decoder(which: str, read: Callable[[Path], None]) -> Callable[[Path], None]:
    def chosen(path: Path) -> None:
        os.environ["TRACE_DOCTOR_DECODER"] = which
        read(path)

    return chosen


def plain_json(path: Path) -> None:
    json.loads(_bytes(path))


def orjson(path: Path) -> None:
    import orjson

    gc.disable()
    orjson.loads(_bytes(path))


def hta_json(path: Path) -> None:
    _hta(path, "json")


def hta_ijson(path: Path) -> None:
    _hta(path, "ijson_batch_and_compress", every_event=True)


def hta_ijson_default(path: Path) -> None:
    _hta(path, "ijson_batch_and_compress")


def _hta(path: Path, backend: str, *, every_event: bool = False) -> None:
    from hta.common.trace_parser import ParserBackend
    from hta.configs.parser_config import ParserConfig
    from hta.trace_analysis import TraceAnalysis

    config = ParserConfig.get_default_cfg()
    config.set_parser_backend(ParserBackend(backend))
    if every_event:
        config.set_skip_event_types(set())
    ParserConfig.set_default_cfg(config)
    TraceAnalysis(trace_files={0: str(path)})


def torch_tb_profiler(path: Path) -> None:
    from torch_tb_profiler.profiler.data import RunProfileData

    with tempfile.TemporaryDirectory() as folder:
        RunProfileData.parse("worker", None, str(path), folder)


def tracelens(path: Path) -> None:
    from TraceLens import TreePerfAnalyzer

    TreePerfAnalyzer.from_file(str(path), add_python_func=True)


def _ours(title: str, decoder: str, read: Callable[[Path], None]) -> Reader:
    names = {"c": "C", "python": "Python"}
    title = f"**trace-doctor, {title}**, decoder in {names[decoder]}"
    return Reader(title, _with_decoder(decoder, read), ours=True, distribution="trace-doctor")


READERS = {
    "load": _ours("load", "c", load),
    "load-python": _ours("load", "python", load),
    "analyze": _ours("whole `analyze`, HTML written", "c", analyze),
    "analyze-python": _ours("whole `analyze`, HTML written", "python", analyze),
    "snapshot": Reader(
        "**trace-doctor, snapshot**, nothing executed, as columns",
        snapshot,
        ours=True,
        distribution="trace-doctor",
        snapshots=True,
    ),
    "pickle": Reader("`pickle.load` (dicts only)", unpickle, snapshots=True),
    "orjson": Reader("orjson, gc off (dicts only)", orjson, needs=("orjson",), distribution="orjson"),
    "json": Reader("`json.loads` (dicts only)", plain_json),
    "tracelens": Reader("TraceLens, tree", tracelens, needs=("TraceLens",), distribution="TraceLens"),
    "tb": Reader(
        "torch-tb-profiler, parse",
        torch_tb_profiler,
        needs=("torch_tb_profiler",),
        distribution="torch-tb-profiler",
    ),
    "hta": Reader(
        "HTA, json backend (its default)", hta_json, needs=("hta",), distribution="HolisticTraceAnalysis"
    ),
    "hta-ijson": Reader(
        "HTA, ijson backend, every event",
        hta_ijson,
        needs=("hta", "ijson"),
        distribution="HolisticTraceAnalysis",
    ),
    "hta-ijson-default": Reader(
        "HTA, ijson backend as it comes (drops Python stacks)",
        hta_ijson_default,
        needs=("hta", "ijson"),
        distribution="HolisticTraceAnalysis",
    ),
}


def main() -> None:
    if sys.argv[1:] == ["--installed"]:
        print(json.dumps({name: r.version() for name, r in READERS.items() if not r.ours and r.installed()}))
        return
    name, path = sys.argv[1:]
    READERS[name].read(Path(path))


if __name__ == "__main__":
    main()
