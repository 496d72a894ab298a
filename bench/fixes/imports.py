"""Imports patched files as they were and as patched, with stand-ins for what is not installed: both have to end alike.

    python bench/fixes/imports.py PATCHES [--sample N]

`PATCHES` is what `trial.py --patches` wrote. Files are taken in turn from every framework and codemod. Each import runs
the file's own top level in a process of its own, without network (`unshare`), with little time and file size, in a copy
of the repository's Python files. torch is the installed one; other packages that are missing are stand-ins.
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

_CHILD = r"""
import importlib.util, json, os, re, resource, signal, sys
import torch
from missing_packages import Finder
torch.set_num_threads(1)

def imported(file, paths):
    resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    signal.alarm(300)
    os.chdir(paths[0])
    sys.path[:0] = paths
    sys.argv[:] = [file]
    sys.meta_path.append(Finder())
    spec = importlib.util.spec_from_file_location("patched_file", file)
    module = importlib.util.module_from_spec(spec)
    sys.modules["patched_file"] = module
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        return f"{type(error).__name__}: {error}"
    return "imported"

answers = os.dup(1)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
for line in sys.stdin:
    inlet, outlet = os.pipe()
    if (child := os.fork()) == 0:
        said = imported(*json.loads(line))
        os.write(outlet, re.sub(r"0x\w+|line \d+|/\S*/", "", said)[:300].encode())
        os._exit(0)
    os.close(outlet)
    said = b"".join(iter(lambda: os.read(inlet, 1024), b"")).decode()
    os.close(inlet)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.write(answers, (json.dumps(said or f"ended with {status}") + "\n").encode())
"""


class Importer:
    """A process that has torch, and forks for each file."""

    def __init__(self) -> None:
        environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "CUDA_VISIBLE_DEVICES": ""}
        environment["PYTHONPATH"] = str(Path(__file__).parent)
        self._process = subprocess.Popen(
            ["unshare", "-rn", sys.executable, "-c", _CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, env=environment, text=True,
        )  # fmt: skip

    def ended(self, file: Path, folder: Path) -> str:
        """How an import of a file ends: `imported`, or its exception."""
        assert self._process.stdin is not None and self._process.stdout is not None
        print(json.dumps([str(file), [str(folder), str(file.parent)]]), file=self._process.stdin, flush=True)
        return str(json.loads(self._process.stdout.readline()))


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


def compared(importer: Importer, one: dict[str, Any]) -> Iterator[tuple[str, str, str]]:
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
        before = {f: importer.ended(copy / f, copy) for f in files}
        subprocess.run(["git", "apply", "-"], input=one["diff"].encode(), cwd=copy, check=True)
        for file in files:
            yield file, before[file], importer.ended(copy / file, copy)


def _not_python(folder: str, names: list[str]) -> list[str]:
    return [
        n
        for n in names
        if not Path(folder, n).is_dir() and not n.endswith((".py", ".yaml", ".yml", ".json", ".sh"))
    ]


def main() -> int:
    asked = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    asked.add_argument("patches", type=Path)
    asked.add_argument("--sample", type=int, default=40)
    given = asked.parse_args()
    counts, importer = Counter[str](), Importer()
    for one in chosen(given.patches, given.sample):
        for file, before, after in compared(importer, one):
            counts["imported" if after == "imported" else "the same exception"] += before == after
            counts["differs"] += before != after
            print(
                f"{one['framework']:26} {one['codemod']:22} {one['repository']}/{file}: {after}", flush=True
            )
            if before != after:
                print(f"DIFFERS: before: {before}", flush=True)
    print(dict(counts))
    return bool(counts["differs"])


if __name__ == "__main__":
    raise SystemExit(main())
