from __future__ import annotations

import json
from pathlib import Path

import pytest

from trace_doctor.capture import Capture
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Facts, Options
from trace_doctor.evidence.trace.call_sites import CallSites, Site
from trace_doctor.loaders.kineto.trace import load_trace
from trace_doctor.run import Run
from trace_doctor.testing import RunBuilder
from trace_doctor.user_frames import same_file, shown_path


def sites(run: Run, options: Options | None = None) -> CallSites:
    return Facts(Capture(0, run), options)[CallSites]


def row(run: Run, name: str) -> int:
    return int(run.named(lambda n: n == name)[0])


def _trained() -> RunBuilder:
    b = RunBuilder(stacks=True)
    with b.python("train.py", 1, "<module>"), b.python("train.py", 40, "train_step"):
        library, relu = (
            b.python("torch/nn/functional.py", n, f) for n, f in ((9, "_call_impl"), (90, "relu"))
        )
        with library, b.python("model.py", 7, "forward"), relu, b.op("aten::relu"):
            b.launch(100, "relu_kernel")
        b.item()
    with b.op("aten::zeros"):
        pass
    return b


def test_the_innermost_user_frame_wins_over_libraries() -> None:
    run = _trained().run()
    assert sites(run).site(row(run, "aten::relu")) == Site("model.py", 7, "forward")
    assert sites(run).site(row(run, "aten::item")) == Site("train.py", 40, "train_step")


def test_gpu_work_has_the_site_of_its_launch() -> None:
    run = _trained().run()
    assert sites(run).site(row(run, "relu_kernel")) == Site("model.py", 7, "forward")


def test_all_user_frames_innermost_first() -> None:
    run = _trained().run()
    assert [s.function for s in sites(run).stack(row(run, "aten::relu"))] == [
        "forward",
        "train_step",
        "<module>",
    ]


def test_no_frame_open_means_no_site() -> None:
    run = _trained().run()
    assert sites(run).site(row(run, "aten::zeros")) is None


def test_another_thread_has_no_site() -> None:
    b = _trained()
    with (
        b.python("train.py", 40, "train_step"),
        b.thread(200),
        b.op("autograd::engine::evaluate_function: X"),
    ):
        b.wait(5)
    run = b.run()
    assert sites(run).site(row(run, "autograd::engine::evaluate_function: X")) is None


def test_a_resumed_function_gives_the_line_that_broke() -> None:
    b = RunBuilder(stacks=True)
    with b.python("train.py", 17, "torch_dynamo_resume_in_forward_at_17"), b.op("aten::mm"):
        b.launch(10)
    run = b.run()
    site = sites(run).site(row(run, "aten::mm"))
    assert site == Site("train.py", 17, "forward", exact=True)
    assert str(site) == "forward() (train.py:17)"


def test_a_definition_is_not_sold_as_the_line_that_ran() -> None:
    assert str(Site("train.py", 40, "train_step")) == "train_step() (train.py)"


def test_without_stacks_it_abstains_and_says_how_to_record_them() -> None:
    b = RunBuilder()
    with b.op("aten::mm"):
        b.launch(10)
    with pytest.raises(NotCaptured) as refused:
        sites(b.run())
    assert "with_stack=True" in (refused.value.capture or "")


def test_old_call_stacks_give_the_lines_that_ran(tmp_path: Path) -> None:
    def op(name: str, ts: int, dur: int, stack: str) -> dict[str, object]:
        args = {"External id": ts, "Call stack": stack}
        return {
            "ph": "X",
            "cat": "Operator",
            "name": name,
            "pid": 1,
            "tid": "1",
            "ts": ts,
            "dur": dur,
            "args": args,
        }

    library = "/opt/conda/lib/python3.7/site-packages/torch/nn/functional.py(611): linear"
    events = [
        op("aten::linear", 10, 50, f"{library};train.py(46): <module>"),
        op("aten::addmm", 20, 10, ""),
        op("aten::relu", 70, 10, library),
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    run = load_trace(path, "trace.json")
    found = sites(run)
    assert found.site(row(run, "aten::linear")) == Site("train.py", 46, "<module>", exact=True)
    assert found.site(row(run, "aten::addmm")) == Site("train.py", 46, "<module>", exact=True)
    assert found.site(row(run, "aten::relu")) is None


def test_paths_are_shown_as_below_the_source(tmp_path: Path) -> None:
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "model.py").write_text("")
    b = RunBuilder(stacks=True)
    with b.python("/home/other/project/pkg/model.py", 3, "forward"), b.op("aten::mm"):
        b.launch(10)
    run = b.run()
    assert sites(run).site(row(run, "aten::mm")) == Site("/home/other/project/pkg/model.py", 3, "forward")
    shown = sites(run, Options(source=tmp_path)).site(row(run, "aten::mm"))
    assert shown == Site("pkg/model.py", 3, "forward")


def test_a_file_of_the_same_name_elsewhere_is_not_the_same(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "model.py").write_text("")
    assert shown_path("/home/x/b/model.py", tmp_path) == "/home/x/b/model.py"
    assert same_file("/home/x/b/model.py", "b/model.py")
    assert not same_file("/home/x/b/model.py", "a/model.py")
    assert not same_file("/home/x/my_model.py", "model.py")


@pytest.mark.captures
def test_the_lines_of_a_real_script(captures_dir: Path) -> None:
    name = "resnet50_num_workers_0_worker0.1623143089861.pt.trace.json.gz"
    run = load_trace(captures_dir / "traces" / "pytorch_kineto" / name, name)
    found = sites(run)
    lines = {
        "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__": 42,
        "aten::cross_entropy_loss": 47,
        "Optimizer.zero_grad#SGD.zero_grad": 49,
        "Optimizer.step#SGD.step": 51,
    }
    for event, line in lines.items():
        rows = run.named(lambda n, event=event: n == event)
        assert {found.site(int(r)) for r in rows} == {
            Site("resnet50_profiler_api.py", line, "<module>", exact=True)
        }
