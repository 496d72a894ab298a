"""What a server reads lies below its folders, whatever takes the place of a file after it was looked at."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from trace_doctor.testing import RunBuilder

posix = pytest.mark.skipif(os.name != "posix", reason="links and descriptors are those of POSIX")
READS = """
import sys
from trace_doctor.api import analyze
from trace_doctor.errors import TraceDoctorError
from trace_doctor.files import read_only_below
if sys.argv[1]:
    read_only_below([sys.argv[1]])
for path in sys.argv[2:]:
    try:
        print([k.name for k in analyze(path).kernels])
    except TraceDoctorError as error:
        print(error)
"""


def trace(folder: Path, kernel: str, rank: int = 0) -> Path:
    b = RunBuilder(rank=rank, world_size=2)
    for _ in range(6):
        with b.step(), b.op("aten::mm"):
            b.launch(300, kernel)
    folder.mkdir(parents=True, exist_ok=True)
    return b.write(folder / f"rank{rank}.json")


def read(below: Path | str, *paths: Path) -> list[str]:
    """What is read of each, here and in child processes, by a process that may read this folder."""
    command = [sys.executable, "-c", READS, str(below), *map(str, paths)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


@posix
def test_a_link_in_the_place_of_what_was_looked_at_is_not_read(tmp_path: Path) -> None:
    """As where it is swapped between the look and the reading: nothing looks here."""
    root, outside = tmp_path / "root", tmp_path / "outside"
    own = trace(root, "own")
    trace(root, "own", rank=1)
    trace(outside, "OUTSIDE")
    trace(outside, "OUTSIDE", rank=1)
    os.symlink(outside, root / "folder")
    os.symlink(outside / "rank0.json", root / "file.json")
    paths = (own, root / "file.json", root / "folder")
    assert "OUTSIDE" in "".join(read("", *paths))
    one, of_file, of_folder = read(root, *paths)
    assert one == "['own']"
    assert "OUTSIDE" not in of_file + of_folder
    assert "a way out of the folders that may be read" in of_file
    assert "rank0" not in of_folder, "nor its names"


@posix
def test_a_recording_by_a_link_says_nothing(tmp_path: Path) -> None:
    samples = Path(__file__).resolve().parents[2] / "sample_traces"
    sample = samples / "dataloader_starvation" / "cpu" / "fault"
    shutil.copytree(sample, tmp_path / "root" / "run")
    for name in ("recording.json", "steps.csv", "rank0.recording.json"):
        own = tmp_path / "root" / "run" / name
        own.rename(tmp_path / name)
        own.symlink_to(tmp_path / name)
    code = (
        "import sys; from pathlib import Path; from trace_doctor.files import read_only_below\n"
        "from trace_doctor.recording.folder import read\n"
        "read_only_below([sys.argv[1]] if sys.argv[2:] else ['/'])\n"
        "found = read(Path(sys.argv[1]) / 'run'); print(bool(found.steps), found.ranks[0].pid is not None)"
    )
    said = [
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "root"), *more], capture_output=True, text=True).stdout
        for more in ((), ("below",))
    ]  # fmt: skip
    assert said == ["True True\n", "False False\n"]
