"""Records one training script of this folder, from the folder that the script is in.

    python ../record.py fault.py --out cpu/fault        trace, on a GPU also a memory snapshot
    python ../record.py fault.py --times steps.csv      step times and losses without the profiler

The script has a function `train(profiler=None)` that calls `profiler.step()` after each step and returns its losses.
A script whose fault is the recording itself has `record(trace)` instead, with a profiler of its own.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
import pickle
import platform
import re
import sys
import sysconfig
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, schedule

ON_GPU = torch.cuda.is_available()
WAIT, WARMUP = 4, 2
RANK = os.environ.get("RANK")
"""of several, where a launcher started this process"""
TRACE = "trace.json" if RANK is None else f"rank{RANK}.json"
SNAPSHOT = "snapshot.pickle" if RANK is None else f"rank{RANK}.pickle"


def load(script: str) -> ModuleType:
    """The script as a module. Its code bears the relative path, so that traces say `fault.py(41): train`."""
    module = ModuleType(Path(script).stem)
    module.__file__ = script
    sys.modules[module.__name__] = module
    exec(compile(Path(script).read_text(encoding="utf-8"), script, "exec"), module.__dict__)
    return module


class Clock:
    """Stands for the profiler in a plain run: notes when each step ends, with the device's work done."""

    def __init__(self) -> None:
        self.ends = [time.perf_counter()]

    def step(self) -> None:
        if ON_GPU:
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())


def measure(module: ModuleType, path: Path) -> None:
    """Step times and losses of a run without the profiler. A run that ends in an out-of-memory error gives none."""
    clock = Clock()
    try:
        losses = module.train(clock)
    except torch.OutOfMemoryError:
        return
    if RANK not in (None, "0"):
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(["step", "milliseconds", "loss"])
        for i, loss in enumerate(losses):
            rows.writerow([i, f"{(clock.ends[i + 1] - clock.ends[i]) * 1e3:.3f}", f"{loss:.6f}"])


def record(module: ModuleType, folder: Path, active: int, stacks: bool) -> None:
    """Profiles the script's training loop. A run that ends in an out-of-memory error is kept: it is the capture."""
    folder.mkdir(parents=True, exist_ok=True)
    if hasattr(module, "record"):
        module.record(str(folder / TRACE))
    else:
        profile_training(module, folder, active, stacks)
    compress(folder)
    environment = {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "device": torch.cuda.get_device_name() if ON_GPU else "cpu",
        "cpu_count": len(os.sched_getaffinity(0)),
        "torch_threads": torch.get_num_threads(),
    }
    text = json.dumps(environment, indent=2)
    (folder / "environment.json").write_text(text + "\n", encoding="utf-8")


def profile_training(module: ModuleType, folder: Path, active: int, stacks: bool) -> None:
    def finish(profiler: profile) -> None:
        profiler.export_chrome_trace(str(folder / TRACE))
        dump_snapshot(folder)

    if ON_GPU:  # the backward pass has no Python frames, hence the C++ ones
        torch.cuda.memory._record_memory_history(max_entries=100_000, stacks="all")
    profiler = profile(
        activities=[ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if ON_GPU else [])],
        schedule=schedule(wait=WAIT, warmup=WARMUP, active=active, repeat=1),
        on_trace_ready=finish,
        record_shapes=True,
        profile_memory=True,
        with_stack=stacks,
    )
    try:
        with profiler:
            module.train(profiler)
    except torch.OutOfMemoryError as error:
        print(f"{module.__name__}: {str(error).splitlines()[0]}")
        dump_snapshot(folder)


def dump_snapshot(folder: Path) -> None:
    if ON_GPU:
        torch.cuda.memory._dump_snapshot(str(folder / SNAPSHOT))
        torch.cuda.memory._record_memory_history(enabled=None)


# -- what is kept of a recording: nothing that names the machine it was made on --------------------------------------

LIBRARIES = sorted({sysconfig.get_path(p) for p in ("purelib", "platlib", "stdlib")}, key=len, reverse=True)


def portable(path: str) -> str:
    """A file's path without what is above this folder, `site-packages`, the standard library or Inductor's cache."""
    for library in LIBRARIES:
        if path.startswith(library):
            return Path(library).name + path.removeprefix(library)
    path = re.sub(r"^.*/torchinductor_[^/]*/", "cache/torchinductor_user/", path)
    path = path.removeprefix(os.getcwd() + os.sep)
    return "/".join(Path(path).parts[-3:]) if path.startswith("/") else path


def compress(folder: Path) -> None:
    """Gzips trace and snapshot without the machine's paths and names."""
    trace = folder / TRACE
    if trace.exists():
        text = trace.read_text(encoding="utf-8", errors="surrogateescape")
        text = re.sub(r'(?<=")(/[^"(]+\.py)(?=[("])', lambda m: portable(m[1]), text)
        text = re.sub(r'"(host_name|username|hostname)": "[^"]*",?\s*', "", text)
        text = re.sub(r'"traceName": "[^"]*"', '"traceName": "trace.json"', text)
        trace.unlink()
        write_gzip(folder / f"{TRACE}.gz", text.encode("utf-8", errors="surrogateescape"))
    snapshot = folder / SNAPSHOT
    if snapshot.exists():
        with snapshot.open("rb") as file:
            content = pickle.load(file)
        for frames in frame_lists(content):
            for frame in frames:
                frame["filename"] = portable(frame["filename"])
        snapshot.unlink()
        write_gzip(folder / f"{SNAPSHOT}.gz", pickle.dumps(content, protocol=4))


def frame_lists(snapshot: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """All stacks of a snapshot."""
    owners = [*(e for device in snapshot["device_traces"] for e in device), *snapshot["segments"]]
    owners += [block for segment in snapshot["segments"] for block in segment["blocks"]]
    return [owner["frames"] for owner in owners if "frames" in owner]


def write_gzip(path: Path, content: bytes) -> None:
    path.write_bytes(gzip.compress(content, compresslevel=9, mtime=0))


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("script")
    arguments.add_argument("--out", type=Path, help="folder for trace, snapshot and environment")
    arguments.add_argument("--times", type=Path, help="CSV file for step times and losses")
    arguments.add_argument("--active", type=int, default=6, help="profiled steps")
    arguments.add_argument("--no-stacks", action="store_true", help="without Python frames")
    given = arguments.parse_args()
    sys.path.insert(0, "")  # worker processes import the script by name
    module = load(given.script)
    if given.out:
        record(module, given.out, given.active, stacks=not given.no_stacks)
    if given.times and hasattr(module, "train"):
        measure(module, given.times)


if __name__ == "__main__":
    main()
