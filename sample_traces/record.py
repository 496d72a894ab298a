"""Records one training script of this folder with `trace-doctor record`, from the folder that the script is in.

    python ../record.py fault.py --out cpu/fault        the recording: traces, snapshots, step times, environment

What names the machine is taken out of it. A script whose fault is the recording itself has `record(trace)`, with a
profiler of its own, and is run as it is.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import pickle
import re
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

# The scripts take some twenty steps: enough for each phase, few enough for files below 2 MB.
SHORT = {"warmup_steps": 3, "max_warmup_steps": 4, "timing_steps": 4, "light_steps": 4, "detailed_steps": 2, "memory_steps": 2}
TEXTS = re.compile(r"(?:rank\d+\.)?recording\.json|environment\.json|steps\.csv|command\.txt")
CAPTURES = re.compile(r"rank\d+\.\w+\.(?:json\.gz|pickle)")


def record(script: str, folder: Path, processes: int, active: int, stacks: bool) -> None:
    """The script's recording. One that ends in an out-of-memory error is kept: it is the capture."""
    from trace_doctor.recording.launch import record_command
    from trace_doctor.recording.options import RecordOptions

    command = [*launcher(processes), script]
    with tempfile.TemporaryDirectory() as scratch:
        options = RecordOptions(folder=scratch, stacks=stacks, **{**SHORT, "light_steps": active})
        done = record_command(command, options, quiet_output=True)
        made = sorted(Path(scratch).iterdir())
        if not any(CAPTURES.fullmatch(p.name) for p in made):
            output = (Path(scratch) / "output.log").read_text(errors="replace")
            sys.exit(f"{script}: exit {done.exit_code}, nothing recorded: {'; '.join(done.warnings)}\n{output}")
        folder.mkdir(parents=True, exist_ok=True)
        for file in made:
            if TEXTS.fullmatch(file.name) or CAPTURES.fullmatch(file.name):
                keep(file, folder)
        for log in sorted(Path(scratch).glob("torch_trace/*.log*")):
            (folder / "torch_trace").mkdir(exist_ok=True)
            keep_log(log, folder / "torch_trace")
    print(f"{script}: {'; '.join(done.warnings) or 'all phases recorded'}")


def launcher(processes: int) -> list[str]:
    """What starts a script in so many processes, one for each rank."""
    if processes == 1:
        return [sys.executable]
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]


# -- a script that records itself, and plain runs ----------------------------------------------------------------------


def load(script: str) -> ModuleType:
    """The script as a module. Its code bears the relative path, so that traces say `fault.py(41): train`."""
    module = ModuleType(Path(script).stem)
    module.__file__ = script
    sys.modules[module.__name__] = module
    exec(compile(Path(script).read_text(encoding="utf-8"), script, "exec"), module.__dict__)
    return module


def run_recorder(script: str, folder: Path) -> None:
    """The trace that the script writes itself, and what it ran on."""
    from trace_doctor.recording import machine as environment

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        trace = Path(scratch) / "trace.json"
        load(script).record(str(trace))
        keep(trace, folder)
    environment.write(folder)


class Clock:
    """Stands for the profiler in a plain run: notes when each step ends, with the device's work done."""

    def __init__(self) -> None:
        self.ends = [time.perf_counter()]

    def step(self) -> None:
        torch = sys.modules["torch"]
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())


# -- what is kept of a recording: nothing that names the machine it was made on --------------------------------------

LIBRARIES = sorted({sysconfig.get_path(p) for p in ("purelib", "platlib", "stdlib")}, key=len, reverse=True)
LOGGED = ("str", "dynamo_start", "compilation_metrics")
ARTIFACTS = ("dynamo_graph_break_reason", "recompile_reasons", "torch_version")
METRICS = ("compile_id", "co_name", "co_filename", "co_firstlineno", "entire_frame_compile_time_s")


def portable(path: str) -> str:
    """A file's path without what is above this folder, `site-packages`, the standard library or Inductor's cache."""
    for library in LIBRARIES:
        if path.startswith(library):
            return Path(library).name + path.removeprefix(library)
    path = re.sub(r"^.*/torchinductor_[^/]*/", "cache/torchinductor_user/", path)
    path = path.removeprefix(os.getcwd() + os.sep)
    return "/".join(Path(path).parts[-3:]) if path.startswith("/") else path


def without_paths(text: str) -> str:
    text = re.sub(r'(?<=")(/[^"(]+\.py)(?=[("])', lambda m: portable(m[1]), text)
    text = re.sub(r"(?<![\w.])/[^\s\"'(),:;]+/python[\d.]*(?![\w./])", "python", text)
    return re.sub(r"(?<![\w.~-])/[^\s\"'(),:;<>]+\.(?:py|log|so)\b", lambda m: portable(m[0]), text)


def keep(file: Path, folder: Path) -> None:
    """A file of the recording without the machine's paths and names; traces and snapshots packed."""
    content = pickled(file) if file.suffix == ".pickle" else plain(file)
    if TEXTS.fullmatch(file.name):
        (folder / file.name).write_bytes(content)
    else:
        write_gzip(folder / f"{file.name.removesuffix('.gz')}.gz", content)


def plain(file: Path) -> bytes:
    content = gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()
    text = content.decode("utf-8", "surrogateescape")
    text = re.sub(r'"(host_name|username|hostname)": "[^"]*",?\s*', "", text)
    text = re.sub(r'"traceName": "[^"]*"', '"traceName": "trace.json"', text)
    return without_paths(text).encode("utf-8", "surrogateescape")


def pickled(file: Path) -> bytes:
    with file.open("rb") as stream:
        content = pickle.load(stream)
    for frames in frame_lists(content):
        for frame in frames:
            frame["filename"] = portable(frame["filename"])
    return pickle.dumps(content, protocol=4)


def frame_lists(snapshot: dict[str, Any]) -> list[list[dict[str, Any]]]:
    """All stacks of a snapshot."""
    owners = [*(e for device in snapshot["device_traces"] for e in device), *snapshot["segments"]]
    owners += [block for segment in snapshot["segments"] for block in segment["blocks"]]
    return [owner["frames"] for owner in owners if "frames" in owner]


def keep_log(log: Path, folder: Path) -> None:
    """Of a TORCH_TRACE log what says why a graph broke or was compiled again: graphs and generated code are large."""
    text = log.read_text(encoding="utf-8", errors="replace")
    content = without_paths("".join(records(text)))
    if content:
        write_gzip(folder / f"{log.name.removesuffix('.gz')}.gz", content.encode())


def records(text: str) -> Iterator[str]:
    for record in re.split(r"^(?=V\d{4} )", text, flags=re.M):
        head, _, payload = record.partition("\n")
        prefix, brace, rest = head.partition("{")
        try:
            said = json.loads(brace + rest)
        except ValueError:
            continue
        if not any(key in said for key in LOGGED) and said.get("artifact", {}).get("name") not in ARTIFACTS:
            continue
        if "compilation_metrics" in said:
            said["compilation_metrics"] = {k: said["compilation_metrics"].get(k) for k in METRICS}
        yield f"{prefix}{json.dumps(said)}\n{payload}"


def write_gzip(path: Path, content: bytes) -> None:
    path.write_bytes(gzip.compress(content, compresslevel=9, mtime=0))


def main() -> None:
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    arguments.add_argument("script")
    arguments.add_argument("--out", type=Path, required=True, help="folder of the recording")
    arguments.add_argument("--processes", type=int, default=1, help="ranks, started by torchrun")
    arguments.add_argument("--active", type=int, default=SHORT["light_steps"], help="steps of the light trace")
    arguments.add_argument("--no-stacks", action="store_true", help="without Python frames")
    given = arguments.parse_args()
    shutil.rmtree(given.out, ignore_errors=True)
    if re.search(r"^def record\(", Path(given.script).read_text(encoding="utf-8"), re.M):
        sys.path.insert(0, "")
        run_recorder(given.script, given.out)
    else:
        record(given.script, given.out, given.processes, given.active, stacks=not given.no_stacks)


if __name__ == "__main__":
    main()
