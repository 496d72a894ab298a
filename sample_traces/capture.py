"""Records every scenario that this machine can show: `python sample_traces/capture.py [SCENARIO ...]`.

Each script runs under `trace-doctor record` as anybody would start it, one at a time and with one torch thread, from its
own folder. Recordings go to `SCENARIO/cpu/` or, where CUDA is available, to `SCENARIO/gpu/`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
MAX_FILE, MAX_ALL = 2 << 20, 25 << 20


def main() -> None:
    import torch

    machine = "gpu" if torch.cuda.is_available() else "cpu"
    wanted = sys.argv[1:] or sorted(p.parent.name for p in HERE.glob("*/expected.toml"))
    busy = os.getloadavg()[0]
    if busy > 1:
        print(
            f"warning: the load of this machine is {busy:.1f}; other work distorts what is recorded",
            file=sys.stderr,
        )
    for scenario in wanted:
        expected = tomllib.loads((HERE / scenario / "expected.toml").read_text(encoding="utf-8"))
        if machine in expected["machines"]:
            for twin in ("fault", "healthy"):
                capture(HERE / scenario, twin, machine, expected.get("capture", {}))
    check_sizes()


def capture(folder: Path, twin: str, machine: str, options: dict[str, object]) -> None:
    """One script: all that `record.py` keeps of it."""
    out = folder / machine / twin
    command = [sys.executable, str(HERE / "record.py"), f"{twin}.py", "--out", str(out.relative_to(folder))]
    for name in ("active", "processes"):
        if name in options:
            command += [f"--{name}", str(options[name])]
    if options.get("stacks") is False:
        command.append("--no-stacks")
    with tempfile.TemporaryDirectory() as scratch:
        environment = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "TORCHINDUCTOR_CACHE_DIR": f"{scratch}/torchinductor_user",
            "TORCHINDUCTOR_COMPILE_THREADS": "1",
        }
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{folder.name}/{twin}.py failed:\n{done.stdout}{done.stderr}")
    kept = ", ".join(f"{p.name} {p.stat().st_size / 1024:.0f} KiB" for p in sorted(out.rglob("*.gz")))
    print(f"{folder.name}/{machine}/{twin}: {kept}", flush=True)


def check_sizes() -> None:
    sizes = {p: p.stat().st_size for p in HERE.rglob("*") if p.is_file()}
    for path, size in sizes.items():
        if size > MAX_FILE:
            sys.exit(f"{path.relative_to(HERE)} has {size} bytes, more than {MAX_FILE}: record fewer steps")
    if sum(sizes.values()) > MAX_ALL:
        sys.exit(f"all captures together have {sum(sizes.values())} bytes, more than {MAX_ALL}")


if __name__ == "__main__":
    main()
