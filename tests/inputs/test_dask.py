"""`analyze --executor dask:ADDRESS`, on a real cluster of two workers."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ending_rule import EndsTheProcess, EndsTheWorker
from warm_commands import FRESH, MAIN

from trace_doctor.api import analyze
from trace_doctor.config import defaults
from trace_doctor.errors import UsageError
from trace_doctor.evidence.base import Options
from trace_doctor.inputs.reading import Reading
from trace_doctor.inputs.store import Store
from trace_doctor.inputs.streamed import Streamed
from trace_doctor.inputs.summaries import Summaries
from trace_doctor.loaders.discover import discover
from trace_doctor.loaders.progress import Progress
from trace_doctor.loading import LoadOptions
from trace_doctor.loading.cluster import Cluster, ClusterLost
from trace_doctor.rule import Rule

pytest.importorskip("distributed")
IMPATIENT = (sys.executable, "-c", f"from trace_doctor.loading import cluster; cluster.WAIT_S = 2.0; {MAIN}")
RULES = [rule() for rule in defaults().settings.chosen()]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Its scheduler gives up each call that a dead worker was to make: other calls are lost with the one that ends it."""
    import dask
    from distributed import LocalCluster

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 0}),
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0") as cluster,
    ):
        yield cluster


def _workers(cluster: Any) -> set[int]:
    return {nanny.pid for nanny in cluster.workers.values()}


def _streamed(job: Path, cluster: Any, store: Path | None = None) -> Streamed:
    summaries = None if store is None else Summaries(Store(store))
    return Streamed(
        discover([job]), [job], LoadOptions(), Options(), None, Reading(summaries, cluster.scheduler_address)
    )


def _ranks(inputs: Streamed, rules: list[Rule]) -> list[int]:
    return [e.rank for e in inputs.examine(rules, detail=False, progress=Progress())]


def _run(*words: str, folder: Path, command: tuple[str, ...] = FRESH) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*command, *words], cwd=folder, capture_output=True, text=True, timeout=300)


def test_the_result_is_that_of_one_machine(job: Path, tmp_path: Path, cluster: Any) -> None:
    """Paths are relative to the folder of the command, which is not that of the workers."""
    shutil.copytree(job, tmp_path / "job")
    command = ("analyze", "job", "--source", "job")
    here = _run(*command, "--summaries", "store", "-o", "json=here.json", folder=tmp_path)
    assert here.returncode == 0, here.stderr
    executor = ("--executor", f"dask:{cluster.scheduler_address}")
    there = _run(*command, *executor, "-o", "json=there.json", folder=tmp_path)
    assert there.returncode == 0 and "Dask" not in there.stderr, there.stderr
    assert (tmp_path / "there.json").read_bytes() == (tmp_path / "here.json").read_bytes()


def test_a_recording_is_read_again_where_its_fixes_are_replayed(cluster: Any, tmp_path: Path) -> None:
    sample = Path(__file__).resolve().parents[2] / "sample_traces/dataloader_starvation/cpu/fault"
    result = analyze(sample, executor=f"dask:{cluster.scheduler_address}")
    assert result == analyze(sample, summaries=tmp_path) and result.what_if and not result.limits


def test_what_the_store_holds_needs_no_cluster(job: Path, tmp_path: Path) -> None:
    whole = analyze(job, summaries=tmp_path, select=["TD5"])
    assert not whole.findings, "no finding: no capture is read again"
    assert analyze(job, summaries=tmp_path, select=["TD5"], executor="dask:127.0.0.1:9") == whole


def test_a_call_that_crashes_costs_its_rank_and_no_worker(job: Path, cluster: Any) -> None:
    before, inputs = _workers(cluster), _streamed(job, cluster)
    assert _ranks(inputs, [*RULES, EndsTheProcess()]) == [0, 1, 3, 4, 5, 6, 7]
    [lost] = inputs.files.scope(None).ignored
    assert lost.unread and lost.path == "rank2.pt.trace.json.gz" and "was killed" in lost.reason
    assert _workers(cluster) == before


def test_a_worker_that_is_killed_meanwhile_costs_no_rank(job: Path, cluster: Any, tmp_path: Path) -> None:
    before, inputs = _workers(cluster), _streamed(job, cluster)
    assert _ranks(inputs, [*RULES, EndsTheWorker(tmp_path / "once")]) == list(range(8))
    assert (tmp_path / "once").exists() and _workers(cluster) != before
    assert not inputs.files.scope(None).ignored


def test_a_rank_that_kills_each_worker_is_lost_alone_and_tried_again(
    job: Path, cluster: Any, tmp_path: Path
) -> None:
    inputs = _streamed(job, cluster, tmp_path)
    assert _ranks(inputs, [*RULES, EndsTheWorker()]) == [0, 1, 3, 4, 5, 6, 7]
    [lost] = inputs.files.scope(None).ignored
    assert lost.path == "rank2.pt.trace.json.gz" and "worker killed" in lost.reason
    assert len(list(tmp_path.rglob("*.td1"))) == 7


def test_a_folder_that_workers_do_not_see_is_refused(job: Path, cluster: Any, tmp_path: Path) -> None:
    with (
        Cluster(cluster.scheduler_address, 60) as calls,
        pytest.raises(UsageError, match="does not see"),
    ):
        calls.check((), str(tmp_path / "gone"))


@pytest.fixture
def silent() -> Iterator[str]:
    """The address of a server that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("dask:SILENT",), "no Dask scheduler at 127.0.0.1"),
        (("dask:127.0.0.1",), "missing port"),
        (("dask:",), "is not local, dask:ADDRESS or slurm"),
        (("dask:127.0.0.1:9", "--jobs", "2"), "jobs and max_memory are of this machine"),
        (("dask:127.0.0.1:9", "-o", "perfetto=p.json"), "need the captures themselves"),
        (("dask:127.0.0.1:9", "--summaries", "s", "--shard", "0/2"), "--shard is one part"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(
    job: Path, tmp_path: Path, silent: str, words: tuple[str, ...], why: str
) -> None:
    words = tuple(word.replace("SILENT", silent) for word in words)
    done = _run("analyze", str(job), "--executor", *words, folder=tmp_path, command=IMPATIENT)
    assert done.returncode == 2 and why in done.stderr, done.stderr
    assert done.stderr.count("\n") == 1 and not done.stdout


def test_a_scheduler_without_workers_is_said(job: Path, tmp_path: Path) -> None:
    from distributed import LocalCluster

    with LocalCluster(n_workers=0, dashboard_address=":0") as empty:
        executor = ("--executor", f"dask:{empty.scheduler_address}")
        done = _run("analyze", str(job), *executor, folder=tmp_path, command=IMPATIENT)
    assert done.returncode == 2 and "has no worker" in done.stderr and done.stderr.count("\n") == 1


def test_without_dask_the_extra_is_named(job: Path, tmp_path: Path) -> None:
    without = (sys.executable, "-c", f"import sys; sys.modules['distributed'] = None; {MAIN}")
    done = _run("analyze", str(job), "--executor", "dask:127.0.0.1:9", folder=tmp_path, command=without)
    assert done.returncode == 2 and "pip install 'trace-doctor[cluster]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_when_the_scheduler_goes_the_analysis_says_so(job: Path, tmp_path: Path) -> None:
    """And does not wait for an answer that never comes."""
    script = tmp_path / "cluster.py"
    script.write_text(
        "import sys\nfrom distributed import LocalCluster\n"
        "if __name__ == '__main__':\n"
        "    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=':0') as c:\n"
        "        print(c.scheduler_address, flush=True); sys.stdin.read()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
    process = subprocess.Popen(
        [sys.executable, script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdin is not None and process.stdout is not None
    address = process.stdout.readline().strip()
    rules = [*RULES, EndsTheWorker(process=process.pid)]
    inputs = Streamed(discover([job]), [job], LoadOptions(), Options(), None, Reading(scheduler=address))
    with pytest.raises(ClusterLost, match="is gone"):
        _ranks(inputs, rules)
    process.stdin.close()
    process.stdout.close()
    process.wait()
