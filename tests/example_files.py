"""The files that docs/exit-codes.md names, made by code: what a reader of that page imagines, a test runs on."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import shutil
import subprocess
import tarfile
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from repositories import committed
from warm_commands import warm

import trace_doctor
from trace_doctor.gate.baseline import Baseline
from trace_doctor.testing import RunBuilder, SnapshotBuilder

SAMPLE = Path(__file__).resolve().parents[1] / "sample_traces" / "dataloader_starvation"
Make = Callable[[Path], None]


def steps(
    kernel_us: float,
    loader_us: float = 0.0,
    rank: int | None = None,
    world: int = 1,
    numbers: Iterable[int] = range(8),
) -> RunBuilder:
    """Steps of one matmul, each behind a wait for its batch; a minute before a number that does not follow."""
    b, before = RunBuilder(rank=rank, world_size=world), -1
    for number in numbers:
        if number > before + 1:
            b.wait(60e6)
        before = number
        with b.step(number):
            if loader_us:
                b.loader(loader_us)
            with b.op("aten::mm"):
                b.launch(kernel_us, "bf16_gemm")
            b.idle_until_done()
    return b


def healthy(path: Path, rank: int | None = None, world: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    steps(9_000.0, rank=rank, world=world).write(path)


def starved(path: Path) -> None:
    steps(300.0, 400.0).write(path)


def stalled(path: Path) -> None:
    """The GPU stands still for a third of each step, for a reason that the trace does not show."""
    b = RunBuilder()
    for number in range(8):
        with b.step(number):
            b.stall(400)
            with b.op("aten::mm"):
                b.launch(600.0, "bf16_gemm")
            b.idle_until_done()
    b.write(path)


def sampled(path: Path) -> None:
    """A healthy trace of which every eighth event of the host is lost, with the numbers that the profiler gives them."""
    trace = json.loads(steps(9_000.0, numbers=range(200)).json())
    host = [e for e in trace["traceEvents"] if e["cat"] in ("cpu_op", "user_annotation")]
    for number, event in enumerate(host):
        event["args"]["Ev Idx"] = number
    lost = {id(event) for event in host if event["cat"] == "cpu_op" and event["args"]["Ev Idx"] % 8 == 1}
    trace["traceEvents"] = [e for e in trace["traceEvents"] if id(e) not in lost]
    path.write_text(json.dumps(trace), encoding="utf-8")


def two_traces(path: Path) -> None:
    starved(path)
    content = path.read_bytes()
    healthy(path)
    path.write_bytes(path.read_bytes() + content)


def zeroed(field: str) -> Make:
    """A healthy trace in which a field of all events is 0."""

    def make(path: Path) -> None:
        trace = json.loads(steps(9_000.0).json())
        for event in trace["traceEvents"]:
            event[field] = 0
        path.write_text(json.dumps(trace), encoding="utf-8")

    return make


def no_launches(path: Path) -> None:
    """The fault without the calls that launched its GPU work."""
    starved(path)
    trace = json.loads(path.read_text(encoding="utf-8"))
    trace["traceEvents"] = [e for e in trace["traceEvents"] if e.get("cat") != "cuda_runtime"]
    path.write_text(json.dumps(trace), encoding="utf-8")


def made_on_the_host(without: str = "", unit: float = 1.0) -> Make:
    """A mask that is made on the host and copied in every step, in a trace without one kind of events or arguments, whose times
    are so many times as long."""

    def make(path: Path) -> None:
        b = RunBuilder(shapes=True)
        for _ in range(6):
            with b.step():
                with b.op("aten::zeros", us=5), b.op("aten::zero_", dims=[[1024, 256]]):
                    b.wait(60)
                with b.op("aten::to", dims=[[1024, 256]]), b.op("aten::copy_"):
                    b.copy(90, "HtoD (Pageable -> Device)", bytes=1 << 20)
                    b.sync()
                for _ in range(20):
                    with b.op("aten::mm", us=20):
                        b.launch(30)
        trace = json.loads(b.json())
        trace["traceEvents"] = [e for e in trace["traceEvents"] if e.get("cat") != without]
        for event in trace["traceEvents"]:
            event |= {field: event[field] * unit for field in ("ts", "dur") if field in event}
            event.get("args", {}).pop(without, None)
        path.write_text(json.dumps(trace), encoding="utf-8")

    return make


def few_events(path: Path) -> None:
    trace = json.loads(steps(9_000.0, rank=1, world=2).json())
    trace["traceEvents"] = trace["traceEvents"][:5]
    path.write_text(json.dumps(trace), encoding="utf-8")


def two_windows(path: Path) -> None:
    steps(9_000.0, numbers=(*range(8), *range(40, 48))).write(path)


def fed(path: Path) -> None:
    steps(9_000.0, 5.0).write(path)


def beside_rank_0(name: str, content: bytes | Make) -> Make:
    """A folder with a healthy rank 0, and beside it what cannot be read as rank 1."""

    def make(folder: Path) -> None:
        healthy(folder / "rank0.pt.trace.json")
        if callable(content):
            content(folder / name)
        else:
            (folder / name).write_bytes(content)

    return make


def with_others(folder: Path) -> None:
    beside_rank_0("config.json", b'{"hidden_size": 768}')(folder)
    (folder / "optimizer.pkl").write_bytes(pickle.dumps({"lr": 0.1}))
    (folder / "metrics.json.gz").write_bytes(gzip.compress(b'{"loss": 1}'))


def text(content: str) -> Make:
    return lambda path: path.write_text(content, encoding="utf-8")


def data(content: bytes) -> Make:
    return lambda path: path.write_bytes(content)


def ranks(present: int, world: int) -> Make:
    def make(folder: Path) -> None:
        for rank in range(present):
            healthy(folder / f"rank{rank}.pt.trace.json", rank, world)

    return make


def saved(change: Callable[[dict[str, Any]], None] = lambda result: None) -> Make:
    """The result of the sample whose script is `job/train.py`."""

    def make(path: Path) -> None:
        result = trace_doctor.analyze(SAMPLE / "cpu" / "fault", source=SAMPLE / "fault.py")
        content = json.loads(result.to_json().replace(b"fault.py", b"train.py"))
        change(content)
        path.write_text(json.dumps(content), encoding="utf-8")

    return make


def report(path: Path) -> None:
    command = [*warm(), "analyze", SAMPLE / "cpu" / "fault", "--no-zoom", "-q", "-o", f"html={path}"]
    subprocess.run(command, check=True, capture_output=True)


def with_code(result: dict[str, Any]) -> None:
    """Text that would become code if it were pasted into a script."""
    for finding in result["findings"]:
        for fix in finding["fixes"]:
            if fix.get("codemod"):
                fix["params"] = {"num_workers": "2); __import__('os').system('touch PWNED'); (2"}


def negative(result: dict[str, Any]) -> None:
    result["summary"]["step_us"] = -1.0


def new_codemod(result: dict[str, Any]) -> None:
    for finding in result["findings"]:
        for fix in finding["fixes"]:
            fix["codemod"] = "not-yet"


def newer(result: dict[str, Any]) -> None:
    result["schema_version"] = 999


def baseline(of: Callable[[Path], None], change: Callable[[dict[str, Any]], Any] = lambda made: None) -> Make:
    def make(path: Path) -> None:
        trace = path.with_name("for-baseline.pt.trace.json")
        of(trace)
        made = json.loads(Baseline.of(trace_doctor.analyze(trace)).to_json())
        change(made)
        path.write_text(json.dumps(made), encoding="utf-8")
        trace.unlink()

    return make


def snapshot(path: Path) -> None:
    b = SnapshotBuilder()
    b.train()
    b.write(path)


def no_frames(path: Path) -> None:
    _trained(SnapshotBuilder(stacks=None), path)


def _trained(b: SnapshotBuilder, path: Path) -> None:
    b.train()
    b.write(path)


class _Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch PWNED",)


def job(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(SAMPLE / "fault.py", folder / "train.py")


def repository(change: str = "") -> Make:
    def make(folder: Path) -> None:
        job(folder)
        committed(folder)
        if change:
            with (folder / "train.py").open("a", encoding="utf-8") as script:
                script.write(change)

    return make


def read_only(folder: Path) -> None:
    job(folder)
    (folder / "train.py").chmod(0o444)


def encoded(name: str, line: bytes = b"") -> Make:
    """Sound but for the encoding that it declares; nothing is committed on top of it."""

    def make(folder: Path) -> None:
        job(folder)
        script = folder / "train.py"
        script.write_bytes(f"# coding: {name}\n".encode() + line + script.read_bytes())

    return make


def state_of_all(folder: Path) -> None:
    (folder / "trace-doctor").mkdir(parents=True)
    (folder / "trace-doctor").chmod(0o777)


def cut(path: Path) -> None:
    whole = path.with_name("whole.json")
    healthy(whole)
    path.write_bytes(gzip.compress(whole.read_bytes())[:-400])
    whole.unlink()


def archived(path: Path) -> None:
    whole = path.with_name("whole.json")
    starved(whole)
    with tarfile.open(path, "w") as archive:
        archive.add(whole, "rank1.json")
    whole.unlink()


def packed_badly(whole: bytes) -> bytes:
    packed = bytearray(gzip.compress(whole))
    packed[12:60] = bytes(48)
    return bytes(packed)


def recording(folder: Path) -> None:
    shutil.copytree(SAMPLE / "cpu" / "fault", folder)


def toml(body: str) -> Make:
    return text(f"[tool.trace-doctor]\n{body}\n" if not body.startswith("[") else f"{body}\n")


EXAMPLES: dict[str, Make] = {
    "healthy.json": healthy,
    "fault.json": starved,
    "fixed.json": fed,
    "slow.json": lambda path: steps(30_000.0).write(path),
    "sampled.json": sampled,
    "fixed-2-steps.json": lambda path: steps(9_000.0, 5.0, numbers=range(2)).write(path),
    "two-traces.json": two_traces,
    "two-windows.json": two_windows,
    "snapshot.pickle": snapshot,
    "no-frames.pickle": no_frames,
    "no-marks.pickle": lambda path: _trained(SnapshotBuilder(annotate=False), path),
    "fault/": recording,
    "empty.json": data(b""),
    "nuls.json": data(bytes(4096)),
    "no-launches.json": no_launches,
    "mask.json": made_on_the_host(),
    "mask-in-ns.json": made_on_the_host(unit=1000.0),
    "mask-in-ms.json": made_on_the_host(unit=0.001),
    "mask-no-sizes.json": made_on_the_host("bytes"),
    "mask-no-steps.json": made_on_the_host("user_annotation"),
    "mask-no-launches.json": made_on_the_host("cuda_runtime"),
    "mask-no-copies.json": made_on_the_host("gpu_memcpy"),
    "stalled.json": stalled,
    "budget-copies.toml": text('[budgets]\nTD104 = "10%"\n'),
    "suppress-budget.toml": text('[budgets]\nTD101 = "10%"\n[suppress]\nTD101 = "known"\n'),
    "max-unowned.toml": text("[budgets]\nmax_unowned = 0.2\n"),
    "no-time.json": zeroed("ts"),
    "no-durations.json": zeroed("dur"),
    "events0.json": text('{"schemaVersion": 1, "traceEvents": []}'),
    "notes.txt": text("batch size 32\n"),
    "config.json": text('{"hidden_size": 768}'),
    "evil.pickle": data(pickle.dumps(_Evil())),
    "empty-folder/": lambda path: path.mkdir(),
    "no-captures/": lambda path: (path.mkdir(), (path / "config.json").write_text("{}"), None)[-1],
    "with-others/": with_others,
    "pointer/": beside_rank_0("snapshot.pickle", b"version https://git-lfs.github.com/spec/v1\nsize 12345\n"),
    "rank1-backup/": beside_rank_0("rank1.pt.trace.json~", starved),
    "rank1-renamed/": beside_rank_0("rank1.txt", starved),
    "rank1-tar/": beside_rank_0("rank1.tar", archived),
    "rank1-zlib/": beside_rank_0("rank1.json.zlib", zlib.compress(b"{}")),
    "rank1-short/": beside_rank_0(
        "rank1.pt.trace.json", lambda path: steps(9_000.0, numbers=range(3)).write(path)
    ),
    "rank1-few/": beside_rank_0("rank1.pt.trace.json", few_events),
    "rank1-empty/": beside_rank_0("rank1.pt.trace.json", b""),
    "rank1-nuls/": beside_rank_0("rank1.pt.trace.json", bytes(4096)),
    "rank1-text/": beside_rank_0("rank1.pt.trace.json", b"killed\n"),
    "rank1-deflate/": beside_rank_0("rank1.pt.trace.json.gz", packed_badly(b'{"traceEvents": [' * 99)),
    "rank1-zst/": beside_rank_0("rank1.pt.trace.json.zst", b"\x28\xb5\x2f\xfd" + bytes(64)),
    "rank1-pickle/": beside_rank_0("rank1_snapshot.pickle", pickle.dumps(_Evil())),
    "rank1-fifo/": beside_rank_0("rank1.pt.trace.json", os.mkfifo),
    "rank1-unfinished/": beside_rank_0(".unfinished.rank1.light.json.gz.7", starved),
    "rank1-dangling/": beside_rank_0("rank1.pt.trace.json", lambda path: path.symlink_to("gone")),
    "rank1-folder/": beside_rank_0("rank1.pt.trace.json", Path.mkdir),
    "one-of-2/": ranks(1, 2),
    "one-of-8/": ranks(1, 8),
    "two-of-8/": ranks(2, 8),
    "two-of-2/": ranks(2, 2),
    "result.json": saved(),
    "result-with-code.json": saved(with_code),
    "result-new-codemod.json": saved(new_codemod),
    "result-newer.json": saved(newer),
    "result-negative.json": saved(negative),
    "result-cut.json": text('{"schema_version": 1, "findings": [{'),
    "report.html": report,
    "somebody.html": text("<p>minutes of the meeting</p>\n"),
    "baseline-healthy.json": baseline(healthy),
    "baseline-fault.json": baseline(starved),
    "baseline-no-ranks.json": baseline(starved, lambda made: made.pop("ranks")),
    "baseline-wide.json": baseline(starved, lambda made: made["figures"]["step_time"].update(spread=1e9)),
    "baseline-varies.json": baseline(
        healthy, lambda made: made["figures"]["step_time"].update(spread=9_000.0)
    ),
    "baseline-misspelt.json": baseline(
        starved, lambda made: made["figures"].update(step_tme=made["figures"].pop("step_time"))
    ),
    "baseline-cut.json": text('{"schema_version": 1, "figures"'),
    "job/": job,
    "job-in-git/": repository(),
    "job-changed/": repository("# a note\n"),
    "job-read-only/": read_only,
    "job-in-cp932/": encoded("cp932", b"# \x87\x90 \x81\xe0\n"),
    "job-in-punycode/": encoded("punycode"),
    "state-of-all/": state_of_all,
    "other/": lambda path: (path.mkdir(), (path / "main.py").write_text("print()\n"), None)[-1],
    "nothing.py": text("print('no torch here')\n"),
    "fails.py": text("raise SystemExit(3)\n"),
    "sleeps.py": text("import time\ntime.sleep(60)\n"),
    "budget-met.toml": text("[budgets]\ngpu_idle_share = 0.9\n"),
    "budget-broken.toml": text("[budgets]\ngpu_idle_share = 0.0001\n"),
    "budget-step.toml": text('[budgets]\nstep_time = "1 s"\n'),
    "budget-unseen.toml": text('[budgets]\npeak_reserved = "1 GiB"\n'),
    "budget-warning.toml": text('[budgets]\npeak_reserved = { max = "1 GiB", level = "warning" }\n'),
    "budget-infinite.toml": text("[budgets]\nnoise = inf\n"),
    "budget-negative.toml": text("[budgets]\ngpu_idle_share = -0.1\n"),
    "budget-empty-list.toml": text("[budgets]\nstep_time = { max_regression = [] }\n"),
    "budget-unknown.toml": text("[budgets]\ngpu_idel_share = 0.1\n"),
    "suppress.toml": text('[suppress]\nTD101 = "the smoke test reads from a slow disk"\n'),
    "suppress-without-reason.toml": text('[suppress]\nTD101 = ""\n'),
    "suppress-nothing.toml": text('[suppress]\n"" = "everything"\n'),
    "suppress-no-file.toml": text('[suppress]\n"TD101 " = "no file"\n'),
    "severity-family.toml": text('[severity]\nTD1 = "info"\n'),
    "unknown-key.toml": text('fail-onn = "critical"\n'),
    "unknown-table.toml": text("[budget]\ngpu_idle_share = 0.1\n"),
    "no-toml.toml": text("fail-on critical\n"),
    "wrong-value.toml": text('fail-on = "always"\n'),
}
"""Name on the page -> what makes it; a name with a slash is a folder."""


def make_examples(folder: Path) -> Path:
    """All files of the page below `folder`."""
    for name, make in EXAMPLES.items():
        make(folder / name.rstrip("/"))
    return folder
