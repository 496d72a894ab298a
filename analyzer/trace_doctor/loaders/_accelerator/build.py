"""Compiles the decoder in C. Standard library only: the build hook of the package runs it before anything is installed."""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

LIBRARY = "scan.lib"
"""No suffix that Python takes for a module's."""
_SOURCES = ("scan.c", "nest.c")
_FLAGS = ("-std=c11", "-O3", "-fwrapv", "-fPIC", "-shared", "-fvisibility=hidden")


def source_hash(folder: Path) -> str:
    """Names one state of the sources, so that a library built from another is noticed."""
    sources = sorted(p for p in folder.iterdir() if p.suffix in (".c", ".h"))
    return hashlib.sha256(b"".join(p.read_bytes() for p in sources)).hexdigest()[:16]


def compiler() -> list[str] | None:
    """$CC with its options, else the system's compiler; None where there is none."""
    named = shlex.split(os.environ.get("CC", ""))
    for command in [named] if named else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(command[0]):
            return command
    return None


def build(target: Path) -> str:
    """Writes the library into the folder `target`. Gives "" or, where that fails, one line that says why."""
    folder = Path(__file__).parent
    command = compiler()
    if command is None:
        return "no C compiler was found"
    with tempfile.TemporaryDirectory() as scratch:
        library = Path(scratch) / LIBRARY
        define = f'-DTRACE_DOCTOR_SOURCES="{source_hash(folder)}"'
        sources = [str(folder / name) for name in _SOURCES]
        try:
            subprocess.run(
                [*command, *_FLAGS, define, *sources, "-o", str(library)],
                check=True,
                capture_output=True,
                text=True,
                timeout=120,
            )
            target.mkdir(parents=True, exist_ok=True)
            beside = target / f"{LIBRARY}.{os.getpid()}"
            shutil.copy(library, beside)
            beside.replace(target / LIBRARY)  # at once: another process may have the old one open
        except subprocess.CalledProcessError as error:
            return next(iter(str(error.stderr).strip().splitlines()), f"{command[0]} failed")
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    return ""
