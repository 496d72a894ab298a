"""Writes the generated pages, or with --check says which are out of date (exit 1).

docs/rules/<CODE>.md and rules/README.md come from the rules' docstrings, docs/cli-reference.md from --help,
the JSON Schemas from the result types, docs/configuration.md from the settings, docs/techniques.md from the techniques
that rules name, docs/evidence.md from the classes of evidence; what commands print in README.md and in the tutorial and
how-to guides comes from running them.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from docs import evidence, techniques

ROOT = Path(__file__).resolve().parent.parent
FAMILIES = {
    "0": "capture: is this file fit for the question?",
    "1": "data",
    "2": "host",
    "3": "kernels",
    "4": "memory",
    "5": "compile",
    "6": "comms",
    "7": "serving",
}


def pages() -> Iterator[tuple[Path, str]]:
    """Every generated file with its text."""
    from trace_doctor.cli.rule_page import page
    from trace_doctor.model import Result, json_schema
    from trace_doctor.model.difference import Difference
    from trace_doctor.model.treatment import Treatment
    from trace_doctor.model.verification import Verification
    from trace_doctor.registry import all_rules

    for rule in all_rules():
        yield ROOT / "docs" / "rules" / f"{rule.code}.md", page(rule)
    yield ROOT / "rules" / "README.md", _rule_index()
    yield ROOT / "docs" / "cli-reference.md", _cli_reference()
    yield ROOT / "docs" / "configuration.md", _configuration()
    yield ROOT / "docs" / "techniques.md", techniques.page()
    yield ROOT / "docs" / "evidence.md", evidence.page()
    shown = [
        ROOT / "README.md",
        ROOT / "docs" / "tutorial.md",
        ROOT / "docs" / "serving.md",
        *sorted((ROOT / "docs" / "how-to").glob("*.md")),
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # each waits for its commands
        yield from zip(shown, pool.map(_with_what_commands_print, shown), strict=True)
    for form in (Result, Verification, Difference, Treatment):
        name = f"{form.__name__.lower()}.schema.json"
        text = json.dumps(json_schema(form), indent=2, sort_keys=True) + "\n"
        yield ROOT / "analyzer" / "trace_doctor" / "reporters" / name, text


def _rule_index() -> str:
    from trace_doctor.registry import all_rules

    lines = [
        "# The rules",
        "",
        "One rule a file, named as the rule; found by walking the package. "
        "[How to write one](../docs/writing-rules.md). This page is generated.",
    ]
    for digit, family in FAMILIES.items():
        mine = [r for r in all_rules() if r.code[2] == digit]
        if not mine:
            continue
        lines += ["", f"## TD{digit}xx {family}", "", "| code | name | finds |", "| --- | --- | --- |"]
        for r in mine:
            file = r.__module__.replace(".", "/") + ".py"
            lines.append(f"| [{r.code}](../docs/rules/{r.code}.md) | [{r.name}]({file}) | {r.title} |")
    return "\n".join(lines) + "\n"


def _with_what_commands_print(page: Path) -> str:
    """Its text with the output of each `$ trace-doctor …` in a block of its own, at 80 columns.

    The commands of a page run one after the other, in a folder that has the sample captures.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "sample_traces").symlink_to(ROOT / "sample_traces")
        return re.sub(
            r"(?<=```console\n)\$ (trace-doctor .+?)\n.+?(?=```)",
            lambda block: f"$ {block[1]}\n{_printed(block[1], folder)}",
            page.read_text(encoding="utf-8"),
            flags=re.DOTALL,
        )


def _printed(line: str, folder: str) -> str:
    """What a shell prints for a line, which may be a pipe."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "COLUMNS": "80", "PYTHONUTF8": "1", "TRACE_DOCTOR_OUTPUT": "text", "PATH": path}
    done = subprocess.run(
        ["bash", "-c", line], cwd=folder, capture_output=True, check=False, env=env, timeout=120
    )
    if done.returncode == 2 or not done.stdout:
        raise SystemExit(f"exit {done.returncode}: {line}\n{done.stderr.decode()}")
    return "".join(f"{shown.rstrip()}\n" for shown in done.stdout.decode().splitlines())


def _cli_reference() -> str:
    from typer.testing import CliRunner

    from trace_doctor.cli.app import application

    app = application()
    commands = [c.name or c.callback.__name__.rstrip("_") for c in app.registered_commands if c.callback]
    lines = [
        "# Command-line reference",
        "",
        "Generated from `--help`. [What the commands are for](cli.md).",
        "",
    ]
    for command in ["", *commands]:
        args = [*command.split(), "--help"]
        shown = CliRunner().invoke(
            app, args, prog_name="trace-doctor", env={"COLUMNS": "100", "TERM": "dumb"}
        )
        text = "\n".join(line.rstrip() for line in shown.output.strip().splitlines())
        lines += [f"## trace-doctor {command}".rstrip(), "", "```text", text, "```", ""]
    return "\n".join(lines)


def _configuration() -> str:
    from trace_doctor.config import Settings

    lines = [
        "# Configuration",
        "",
        "Settings are in `[tool.trace-doctor]` of `pyproject.toml` or at the top of `trace-doctor.toml` (there a header `[tool.trace-doctor]` is allowed, and in both `_` in a key counts as `-`), the nearest one from the "
        "working directory upwards. Both in one folder are an error, and so is a file of another user (except root, and the owner of "
        "the working directory). The command line overrides the environment (`TRACE_DOCTOR_SELECT`, ...), which overrides the file. "
        "`trace-doctor config` shows each value with its origin. An unknown key is an error.",
        "",
        "| key | default | meaning |",
        "| --- | --- | --- |",
    ]
    for f in dataclasses.fields(Settings):
        default = json.dumps(getattr(Settings(), f.name))
        lines.append(f"| `{f.name.replace('_', '-')}` | `{default}` | {f.metadata['doc']} |")
    lines += [
        "",
        "A configuration may come with a repository that somebody else wrote. So an `output`, or the `baseline` of "
        "`--update-baseline`, that a file names is written only below the folder of that file or the working folder, links "
        "resolved. It replaces only an unchanged output or baseline of trace-doctor: such a file ends in a digest of the rest. A file "
        "of GitHub annotations has none and is not replaced, nor is a JSON or SARIF output that was redirected from the terminal. "
        "The command line and the environment may name any place.",
        "",
        "```toml",
        "[tool.trace-doctor]",
        'ignore = ["TD001"]',
        'fail-on = "critical"',
        "",
        "[tool.trace-doctor.rules.TD101]",
        "min_share = 0.10",
        "",
        "[tool.trace-doctor.severity]",
        'TD405 = "info"',
        "```",
        "",
    ]
    return "\n".join(lines)


def main() -> int:
    check = "--check" in sys.argv
    os.environ.pop("NO_COLOR", None)
    stale, wanted = [], set()
    for path, text in pages():
        wanted.add(path)
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(path)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for path in sorted((ROOT / "docs" / "rules").glob("*.md")):
        if path not in wanted:
            stale.append(path)
            if not check:
                path.unlink()
    for path in stale:
        print(("out of date: " if check else "written: ") + str(path.relative_to(ROOT)))
    if check and stale:
        print("run: make generate")
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
