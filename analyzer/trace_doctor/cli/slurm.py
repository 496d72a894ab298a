"""The script that reads captures in the tasks of a Slurm array. It is printed and never submitted."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

import typer

from trace_doctor.errors import NoCaptures, UsageError
from trace_doctor.version import VERSION

MOST_TASKS = 64
"""of the array, unless its range is edited: each task lists the folder once"""
_OF_NEITHER = {"paths", "summaries", "executor", "shard", "critical_path", "no_zoom"}
_OF_MERGE = {"output", "no_source", "show_skipped", "force"}

_SCRIPT = """\
#!/bin/sh
# trace-doctor {version}: {groups} capture groups in {tasks} array tasks, then one job that merges their summaries.
# Add to both sbatch lines what your cluster asks for (--partition, --account, --time, --mem, --cpus-per-task).
# The range of --array may be another one that begins with 0. Submit with: sh FILE
set -eu

shards() {{
sbatch --parsable --job-name=trace-doctor --chdir={folder} --array=0-{last} <<'TASK'
#!/bin/sh
exec trace-doctor analyze {analyze} --shard="$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" -- {paths}
TASK
}}

merge() {{
sbatch --job-name=trace-doctor-merge --chdir={folder} --dependency="afterany:$1" <<'MERGE'
#!/bin/sh
exec trace-doctor merge {merge} -- {store}
MERGE
}}

array=$(shards)
merge "${{array%%;*}}"
"""
# afterany and not afterok: where a task fails, the merge names the shards that are missing; afterok would wait forever.


def array_script(context: typer.Context, paths: Sequence[str], summaries: Path) -> str:
    """The script, with the options that the command line of `context` has. Raises NoCaptures where there is nothing to read,
    and UsageError for an argument that a script cannot hold."""
    from trace_doctor.inputs.groups import groups_of
    from trace_doctor.inputs.remote import remote
    from trace_doctor.loaders.discover import discover

    with remote(paths) as there:
        found = discover(paths, strict=False) if there is None else there.discovered(paths)
    groups = len(groups_of(found.found))
    if not groups:
        raise NoCaptures(f"{', '.join(paths)}: no captures to read")
    tasks = min(groups, MOST_TASKS)
    store = shlex.quote(str(summaries))
    own = [w for name, w in _given(context) if name not in _OF_NEITHER | _OF_MERGE]
    merge = [w for name, w in _given(context) if name not in _OF_NEITHER]
    filled = {
        "folder": shlex.quote(os.getcwd()),
        "analyze": " ".join([f"--summaries={store}", *map(shlex.quote, own)]),
        "paths": shlex.join(paths),
        "merge": shlex.join(merge),
        "store": store,
    }
    if any("\n" in text or "\r" in text for text in filled.values()):
        raise UsageError("--executor slurm: an argument or the working folder has a line break in its name")
    return _SCRIPT.format(version=VERSION, groups=groups, tasks=tasks, last=tasks - 1, **filled)


def _given(context: typer.Context) -> Iterator[tuple[str, str]]:
    """(name of an option, a word of the command line), for options that were given there and not by the environment, which
    Slurm hands on to its jobs."""
    for option in context.command.params:
        name = option.name or ""
        source = context.get_parameter_source(name)
        if source is None or source.name != "COMMANDLINE" or name in _OF_NEITHER:
            continue
        value = context.params[name]
        if isinstance(value, bool):
            yield name, option.opts[0] if value else option.secondary_opts[0]
            continue
        for each in value if isinstance(value, list | tuple) else [value]:
            yield name, f"{option.opts[0]}={each}"
