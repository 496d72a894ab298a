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
DIGEST = f"{LIBRARY}.sha256"
"""Beside the library: of its bytes, which are checked before they are loaded. A file that was cut ends the process"""
_SOURCES = ("scan.c", "nest.c")
_FLAGS = ("-std=c11", "-O3", "-fwrapv", "-fPIC", "-shared", "-fvisibility=hidden")


def source_hash(folder: Path) -> str:
    """Names one state of the sources, so that a library built from another is noticed."""
    sources = sorted(p for p in folder.iterdir() if p.suffix in (".c", ".h"))
    return hashlib.sha256(b"".join(p.read_bytes() for p in sources)).hexdigest()[:16]


def is_whole(folder: Path) -> bool:
    """Whether the library of the folder is the one that was built. Raises OSError where it, or its digest, cannot be read."""
    return (folder / DIGEST).read_text("ascii", "replace") == _digest(folder / LIBRARY)


def _digest(library: Path) -> str:
    return hashlib.sha256(library.read_bytes()).hexdigest()


def compiler() -> list[str] | None:
    """$CC with its options, else the system's compiler; None where there is none."""
    named = shlex.split(os.environ.get("CC", ""))
    for command in [named] if named else [["cc"], ["gcc"], ["clang"]]:
        if shutil.which(command[0]):
            return command
    return None


def build(target: Path) -> str:
    """Writes the library and its digest into the folder `target`. Gives "" or, where that fails, one line that says why."""
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
            library.with_name(DIGEST).write_text(_digest(library), "ascii")
            for name in (DIGEST, LIBRARY):
                beside = target / f"{name}.{os.getpid()}"
                shutil.copy(library.with_name(name), beside)
                beside.replace(target / name)  # at once: another process may have the old one open
        except subprocess.CalledProcessError as error:
            return next(iter(str(error.stderr).strip().splitlines()), f"{command[0]} failed")
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    return ""
