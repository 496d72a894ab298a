"""Where kernels come from: traces with what lies beside them, read as an analysis reads them. The layout of the logs and of the pickles
is that of torch 2.13; Triton's names are made up, as no GPU is there."""

from __future__ import annotations

import gzip
import json
import pickle
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from trace_doctor.engine.detail.work import work_detail_of
from trace_doctor.engine.implausible import implausible
from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Facts
from trace_doctor.evidence.trace.kernel_sites import KernelSites
from trace_doctor.loaders.discover import discover
from trace_doctor.loading.captures import captures_of
from trace_doctor.loading.load_file import load
from trace_doctor.model.work_detail import Origin
from trace_doctor.run import Cat
from trace_doctor.testing import RunBuilder
from trace_doctor.testing.cases import claims_on
from trace_doctor_rules.kernels.underfilled_gpu import UnderfilledGpu
from trace_doctor_rules.kernels.unfused_attention import UnfusedAttention

POINTWISE = "triton_poi_fused_add_relu_0"
NODE = 7 << 32


def stack(*frames: tuple[str, int, str]) -> str:
    """As Inductor has it: outermost first."""
    return "".join(f'  File "{file}", line {line}, in {name}\n    y = x\n' for file, line, name in frames)


def forward(*lines: int, file: str = "/home/me/model.py") -> list[str]:
    """The stack of each line; a library is open inside."""
    return [
        stack((file, n, "forward"), ("/lib/python3.12/site-packages/torch/nn/x.py", 3, "relu")) for n in lines
    ]


def log(kernels: dict[str, list[str]], frame: int = 0) -> str:
    head = {"artifact": {"name": "inductor_provenance_tracking_kernel_stack_traces", "encoding": "json"}}
    head |= {"frame_id": frame, "frame_compile_id": 0, "attempt": 0, "has_payload": "x"}
    line = f"V1128 02:41:15.272000 4183 torch/_inductor/compile_fx.py:1632] {json.dumps(head)}"
    return f"{line}\n\t{json.dumps(kernels)}\n"


def compiled(regions: int = 1) -> RunBuilder:
    """In each step a kernel of Triton, and one of cuBLAS, in so many compiled functions."""
    b = RunBuilder()
    for _ in range(3):
        with b.step():
            for frame in range(regions):
                with b.region(frame):
                    with b.op(POINTWISE):
                        b.launch(50, POINTWISE)
                    with b.op("extern_kernels.mm"), b.op("aten::mm"):
                        b.launch(90, "ampere_gemm")
    return b


def replayed(**inline: str) -> RunBuilder:
    """A CUDA graph of two nodes that is launched in each step."""
    b = RunBuilder()
    for _ in range(3):
        with b.step():
            first = len(b.events)
            ids = {"graph id": 7, "graph node id": NODE + 1}
            b.launch(50, POINTWISE, call="cudaGraphLaunch", **ids)
            kernel = next(e for e in b.events[first:] if e["cat"] == "kernel")
            kernel["args"] |= inline
            # the CUPTI monitor writes the low half of the id
            b.events.append(
                {**kernel, "ts": kernel["ts"] + 51, "args": {**kernel["args"], "graph node id": 2}}
            )
            b.wait(200)
    if inline:
        b.meta["cudaGraphInlineAnnotated"] = True
    return b


def facts_of(folder: Path, b: RunBuilder, **files: str | bytes) -> Facts:
    """The only capture below a folder with this trace and these files."""
    (folder / "traces").mkdir(exist_ok=True)
    (folder / "traces" / "trace.json").write_text(b.json())
    for name, content in files.items():
        path = folder / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    found = discover([folder]).found
    (capture,) = [c for c in captures_of([(f, load(f)) for f in found]) if c.run is not None]
    return Facts(capture)


def texts(facts: Facts) -> list[str]:
    """Of the kernels of the first step."""
    return [facts[KernelSites].text(row) for row in facts.run.gpu[:2].tolist()]


def named(facts: Facts, name: str) -> int:
    return int(facts.run.named(name.__eq__, Cat.KERNEL)[0])


LOG = "dedicated_log_torch_trace_abc.log"


def test_a_compiled_kernel_comes_from_the_lines_of_the_model_that_inductor_names(tmp_path: Path) -> None:
    written = log({f"{POINTWISE}:1": forward(8, 7), "extern_kernels.mm:2": forward(9)})
    facts = facts_of(tmp_path, compiled(), **{LOG: written})
    assert texts(facts) == ["forward() (/home/me/model.py:7, 8)", "forward() (/home/me/model.py:9)"]
    site = facts[KernelSites].site(named(facts, "ampere_gemm"))
    assert site is not None and (site.line, site.exact) == (9, True)


def test_a_name_that_several_kernels_have_may_be_one_of_them(tmp_path: Path) -> None:
    """Calls of one name in one function; of two functions the one that is open tells."""
    twice = log({f"{POINTWISE}:1": forward(8), f"{POINTWISE}:2": forward(20)})
    facts = facts_of(tmp_path, compiled(), **{LOG: twice})
    assert texts(facts)[0] == "one of forward() (/home/me/model.py:8); forward() (/home/me/model.py:20)"
    site = facts[KernelSites].site(named(facts, POINTWISE))
    assert site is not None and not site.exact
    both = log({f"{POINTWISE}:1": forward(8)}) + log({f"{POINTWISE}:1": forward(30, file="/b.py")}, frame=1)
    facts = facts_of(tmp_path, compiled(regions=2), **{LOG: both})
    rows = facts.run.named(POINTWISE.__eq__, Cat.KERNEL)[:2].tolist()
    assert [facts[KernelSites].text(r) for r in rows] == [
        "forward() (/home/me/model.py:8)",
        "forward() (/b.py:30)",
    ]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("inductor_provenance_tracking_kernel_stack_traces_12.json", {f"{POINTWISE}:3": forward(8)}),
        (
            "kernel_information.json",
            {f"{POINTWISE}:3": {"stack_traces": forward(8), "post_grad_nodes": ["add"]}},
        ),
    ],
)
def test_files_of_inductor_tell_the_same(tmp_path: Path, name: str, content: dict[str, Any]) -> None:
    """They are no log of compiling: one that is there as well is still the only one."""
    mappings = {"inductor_provenance_tracking_node_mappings.json": "{}"}
    facts = facts_of(tmp_path, compiled(), **{name: json.dumps(content)}, **mappings)
    assert texts(facts)[0] == "forward() (/home/me/model.py:8)"
    assert not discover([tmp_path]).ignored


def test_a_stack_among_the_arguments_of_the_kernel_tells_it(tmp_path: Path) -> None:
    b = RunBuilder()
    with b.step():
        b.launch(50, POINTWISE, stack=forward(8)[0])
    assert facts_of(tmp_path, b)[KernelSites].text(1 + 1) == "forward() (/home/me/model.py:8)"


def test_code_from_a_cache_that_was_made_without_lines_is_no_damage(tmp_path: Path) -> None:
    """torch 2.13 writes the header alone then."""
    cached = log({}).partition("\n")[0].replace(', "has_payload": "x"', "") + "\n"
    facts = facts_of(tmp_path, compiled(), **{LOG: cached + log({f"{POINTWISE}:1": forward(8)})})
    assert not facts.capture.torch_logs[0].warnings
    assert texts(facts)[0] == "forward() (/home/me/model.py:8)"


def test_nothing_is_claimed_where_nothing_tells(tmp_path: Path) -> None:
    facts = facts_of(tmp_path, compiled(), **{LOG: log({"triton_other:1": forward(8)})})
    assert texts(facts) == ["", ""]
    with pytest.raises(NotCaptured, match="which lines kernels come from"):
        facts_of(tmp_path, compiled(), **{LOG: log({})})[KernelSites]


# -- nodes of CUDA graphs ----------------------------------------------------------------------------------------

KEYS = {NODE + 1: "up", NODE + 2: "down"}


@pytest.mark.parametrize(
    "annotations",
    [
        {key: [{"name": name, "stream": 60}] for key, name in KEYS.items()},
        {key: ["model", name] for key, name in KEYS.items()},
        {key: {"str": name} for key, name in KEYS.items()},
        defaultdict(list, {key: [{"name": name}] for key, name in KEYS.items()}),
    ],
    ids=["new", "bare texts", "of a stream", "as torch holds them"],
)
@pytest.mark.parametrize("folder", ["", "traces/"])
def test_a_node_has_the_name_that_it_was_given_at_capture(
    tmp_path: Path, annotations: Any, folder: str
) -> None:
    (tmp_path / "traces").mkdir()
    file = {f"{folder}kernel_annotations_rank0_3.pkl": pickle.dumps(annotations)}
    facts = facts_of(
        tmp_path, replayed(), **file, **{f"{folder}kernel_annotations_rank1_3.pkl": b"of another"}
    )
    assert texts(facts) == ["up", "down"]
    assert not discover([tmp_path]).ignored and not facts.run.warnings


def test_torch_may_have_written_the_name_into_the_trace(tmp_path: Path) -> None:
    assert texts(facts_of(tmp_path, replayed(name="up"))) == ["up", "up"]


def test_a_node_comes_from_the_line_that_was_captured(tmp_path: Path) -> None:
    """Before what Inductor says of all kernels of the name."""
    stacks = {str(NODE + 1): "model.py:7:forward\ntrain.py:90:main", str(NODE + 2): "model.py:8:forward"}
    written = gzip.compress(json.dumps(stacks).encode())
    facts = facts_of(
        tmp_path,
        replayed(),
        **{"graph_python_stacks_rank0.json.gz": written, LOG: log({f"{POINTWISE}:1": forward(99)})},
    )
    assert texts(facts) == ["forward() (model.py:7)", "forward() (model.py:8)"]
    assert not discover([tmp_path]).ignored


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (Path("made.txt"),)


@pytest.mark.parametrize("content", [pickle.dumps({NODE + 1: Evil()}), b"\x80\x04", pickle.dumps([1])])
def test_what_is_no_annotation_is_not_executed_and_named(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    facts = facts_of(tmp_path, replayed(), **{"kernel_annotations_rank0_3.pkl": content})
    assert not (tmp_path / "made.txt").exists()
    assert any("kernel_annotations_rank0_3.pkl cannot be read" in w for w in facts.run.warnings)


# -- what people see ---------------------------------------------------------------------------------------------


def test_a_finding_on_compiled_kernels_names_the_line_of_the_model(tmp_path: Path) -> None:
    """The first of two that were fused; in the table both."""
    b = RunBuilder(memory=True)
    for _ in range(3):
        with b.step(), b.region(0), b.op(POINTWISE):
            b.memory(1 << 30, reserved=1 << 30)
            b.launch(900, POINTWISE, grid=[16, 1, 1])
    facts = facts_of(tmp_path, b, **{LOG: log({f"{POINTWISE}:1": forward(8, 7)})})
    (claim,) = claims_on(UnderfilledGpu(), [facts])
    assert (claim.location.file, claim.location.line) == ("/home/me/model.py", 7)
    assert claim.evidence[0].rows[0][-1] == "forward() (/home/me/model.py:7, 8)"
    (kernel,) = work_detail_of(facts, 10).kernels
    assert kernel.site == Origin(name="forward() (/home/me/model.py:7, 8)", share=1.0)


def test_a_finding_in_a_graph_names_the_line_that_was_captured(tmp_path: Path) -> None:
    b = RunBuilder()
    for _ in range(4):
        with b.step():
            first = len(b.events)
            for n, name in enumerate(("sm90_gemm", "cunn_SoftMaxForward", "sm90_gemm")):
                b.launch(
                    300,
                    name,
                    call="cudaGraphLaunch",
                    grid=[4, 4, 64],
                    **{"graph id": 7, "graph node id": n + 1},
                )
            kernels = [e for e in b.events[first:] if e["cat"] == "kernel"]
            for kernel in kernels:
                kernel["args"]["correlation"] = kernels[0]["args"]["correlation"]
    stacks = {str(NODE + n): f"attention.py:{30 + n}:attention" for n in (1, 2, 3)}
    facts = facts_of(tmp_path, b, **{"stacks_rank0.json": json.dumps(stacks)})
    (claim,) = claims_on(UnfusedAttention(), [facts])
    assert "Attention in attention() (attention.py:32)" in claim.message
    assert (claim.location.file, claim.location.line) == ("attention.py", 32)


def test_a_log_of_another_process_does_not_count_where_the_traced_one_has_its_own(tmp_path: Path) -> None:
    old = log({f"{POINTWISE}:1": forward(99)})
    own = log({f"{POINTWISE}:1": forward(8)}).replace(" 4183 ", " 100 ")
    facts = facts_of(tmp_path, compiled(), **{LOG: old, "dedicated_log_torch_trace_own.log": own})
    assert texts(facts)[0] == "forward() (/home/me/model.py:8)"


def test_work_that_torch_moved_to_a_lane_is_on_the_stream_that_it_ran_on(tmp_path: Path) -> None:
    """Kernels that ran at the same time lie on one lane: their times are not impossible for that."""
    b = RunBuilder()
    for _ in range(6):
        with b.step():
            for n in range(4):
                b.launch(900, stream=20 + n, call="cudaGraphLaunch", original_stream=20 + n)
            b.wait(2000)
    for event in b.events:
        if event["cat"] == "kernel":
            event["tid"] = event["args"]["stream"] = 7
    facts = facts_of(tmp_path, b)
    assert sorted(set(facts.run.stream[facts.run.gpu].tolist())) == [20, 21, 22, 23]
    assert not implausible(facts)
