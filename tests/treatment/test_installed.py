"""A project that is installed in place is imported from the copy, by the interpreter that the command runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trace_doctor.treatment.installed import in_place
from trace_doctor.treatment.scratch import Scratch

FINDER = 'from x import y\nMAPPING: dict[str, str] = {{"package": "{root}/src/package"}}\nNAMESPACES = {{}}\n'


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    (root / "src" / "package").mkdir(parents=True)
    (root / "src" / "package" / "__init__.py").write_text("")
    (root / ".venv" / "bin").mkdir(parents=True)
    (root / ".venv" / "bin" / "python").symlink_to(sys.executable)
    (root / ".venv" / "pyvenv.cfg").write_text(f"home = {Path(sys.base_prefix) / 'bin'}\n")
    return root


@pytest.mark.parametrize("how", ["pth", "finder", "link"])
@pytest.mark.parametrize("python", ["{root}/.venv/bin/python", ".venv/bin/python", "python"])
def test_the_package_of_the_copy_is_imported(project: Path, how: str, python: str) -> None:
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = project / ".venv" / "lib" / version / "site-packages"
    packages.mkdir(parents=True)
    if how == "link":
        (packages / "package").symlink_to(project / "src" / "package")
    else:
        (packages / "p.pth").write_text(f"{project}/src\n/elsewhere\nimport sys\n")
    if how == "finder":
        (packages / "p.pth").unlink()
        (packages / "__editable___package_1_0_finder.py").write_text(FINDER.format(root=project))
    command = [python.format(root=project), "-c", "import package; print(package.__file__)"]
    given = {"PATH": f"{project}/.venv/bin:/usr/bin:/bin"}
    with Scratch(project, project) as scratch:
        scratch.import_from(in_place(command, project, given))
        assert any("imported from the copy" in note for note in scratch.notes)
        environment, run = scratch.environment(given), scratch.command(command, project)
        done = subprocess.run(
            run, cwd=scratch.cwd, env=environment, capture_output=True, text=True, check=True
        )
        assert done.stdout.strip() == str(scratch.cwd / "src" / "package" / "__init__.py")


@pytest.mark.parametrize(
    "text", ["MAPPING = [", "MAPPING = f()", "MAPPING: dict", "MAPPING = [1]", "\0", "("]
)
def test_a_finder_that_is_none_is_passed_over(project: Path, text: str) -> None:
    packages = project / ".venv" / "lib" / "python3.11" / "site-packages"
    packages.mkdir(parents=True)
    (packages / "__editable___x_finder.py").write_text(text)
    (packages / "gone").symlink_to("nowhere")
    (packages / "a.pth").mkdir()
    assert in_place([f"{project}/.venv/bin/python"], project, {}) == [str(packages)]
