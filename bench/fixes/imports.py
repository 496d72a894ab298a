"""Imports patched files as they were and as patched, with stand-ins for what is not installed: both have to end alike.

    python bench/fixes/imports.py PATCHES [--sample N]

`PATCHES` is what `trial.py --patches` wrote. Files are taken in turn from every framework and codemod. Each import runs
the file's own top level in a process of its own, without network (`unshare`), with little memory, time and file size,
in a copy of the repository's Python files. torch is the installed one; other packages that are missing are stand-ins.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_SECONDS = 60
_CHILD = r'''
import importlib.abc, importlib.machinery, importlib.util, resource, sys, types
sys.path[:0] = sys.argv[2:]
resource.setrlimit(resource.RLIMIT_CPU, (40, 40))
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
import torch
torch.set_num_threads(1)

class Anything(type):
    """A class whose attributes, calls and items are such classes, so that it can be a base, a decorator or a value."""
    def __getattr__(cls, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {})
    def __call__(cls, *given, **named):
        if cls.__dict__.get("__module__") not in (None, __name__):
            return super().__call__(*given, **named)
        return given[0] if len(given) == 1 and not named and callable(given[0]) else Anything("made", (), {})
    def __getitem__(cls, key): return cls
    def __iter__(cls): return iter(())
    def __len__(cls): return 0
    def __or__(cls, other): return cls
    __ror__ = __or__

class Stand(types.ModuleType):
    __path__ = []
    def __getattr__(self, name):
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return Anything(name, (), {"__module__": None})

class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        own = name.split(".")[0] in sys.stdlib_module_names or name.split(".")[0] in ("torch", "numpy")
        return None if own else importlib.machinery.ModuleSpec(name, self, is_package=True)
    def create_module(self, spec): return Stand(spec.name)
    def exec_module(self, module): pass

sys.meta_path.append(Finder())
spec = importlib.util.spec_from_file_location("patched_file", sys.argv[1])
module = importlib.util.module_from_spec(spec)
sys.modules["patched_file"] = module
sys.argv[1:] = []
try:
    spec.loader.exec_module(module)
    print("\nended: imported")
except BaseException as error:
    print(f"\nended: {type(error).__name__}: {error}"[:300].replace("\n", " "))
'''


def chosen(patches: Path, sample: int) -> list[dict[str, Any]]:
    """Patches of Python files, one of each framework and codemod before the second of any."""
    seen: Counter[tuple[str, str]] = Counter()
    found = []
    for line in patches.read_text(encoding="utf-8").splitlines():
        one = json.loads(line)
        if one["diff"] and one["status"] == "ready" and re.search(r"(?m)^\+\+\+ b/.*\.py$", one["diff"]):
            key = one["framework"], one["codemod"]
            seen[key] += 1
            found.append((seen[key], one["repository"], len(found), one))
    return [one for *_, one in sorted(found, key=lambda f: f[:3])[:sample]]


def ended(file: Path, paths: list[Path]) -> str:
    """How an import of a file ends: `imported`, or its exception."""
    command = ["unshare", "-rn", sys.executable, "-c", _CHILD, str(file), *map(str, paths)]
    environment = {"PATH": os.environ["PATH"], "HOME": str(paths[0]), "CUDA_VISIBLE_DEVICES": ""}
    try:
        done = subprocess.run(
            command, cwd=paths[0], env=environment, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return "no end"
    said = [line for line in done.stdout.splitlines() if line.startswith("ended: ")]
    return re.sub(r"0x\w+|line \d+", "", said[-1][7:]) if said else f"exit {done.returncode} {done.stderr[-200:]}"


def compared(one: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
    """(file, how the import ended before, and after) of the files of a patch."""
    root = Path(one["source"])
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, root.name)
        if root.is_dir():
            shutil.copytree(root, copy, ignore=_not_python, symlinks=True)
        else:
            copy.mkdir()
            shutil.copy(root, copy)
        files = re.findall(r"(?m)^\+\+\+ b/(.*\.py)$", one["diff"])
        before = {f: ended(copy / f, [copy, (copy / f).parent]) for f in files}
        subprocess.run(["git", "apply", "-"], input=one["diff"].encode(), cwd=copy, check=True)
        for file in files:
            yield file, before[file], ended(copy / file, [copy, (copy / file).parent])


def _not_python(folder: str, names: list[str]) -> list[str]:
    return [n for n in names if not Path(folder, n).is_dir() and not n.endswith((".py", ".yaml", ".yml", ".json", ".sh"))]


def main() -> int:
    asked = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    asked.add_argument("patches", type=Path)
    asked.add_argument("--sample", type=int, default=40)
    given = asked.parse_args()
    counts: Counter[str] = Counter()
    for one in chosen(given.patches, given.sample):
        for file, before, after in compared(one):
            counts["imported" if after == "imported" else "the same exception"] += before == after
            counts["differs"] += before != after
            print(f"{one['framework']:26} {one['codemod']:22} {one['repository']}/{file}: {after}", flush=True)
            if before != after:
                print(f"DIFFERS: before: {before}", flush=True)
    print(dict(counts))
    return bool(counts["differs"])


if __name__ == "__main__":
    raise SystemExit(main())
