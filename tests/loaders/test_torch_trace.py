"""TORCH_TRACE logs, in the words of torch 2.13 (the payloads are cut from real logs)."""

from __future__ import annotations

import contextlib
import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trace_doctor.errors import NotACapture
from trace_doctor.loaders.torch_trace import CompileLog, LogFrame, LoggedLimit, load_torch_trace

BREAK = """Graph break in user code at /home/me/train.py:17
Graph Break Reason: Encountered graph break when attempting to trace CALL: a function call, e.g. f(x, y):

Unsupported Tensor.item() call with capture_scalar_outputs=False
  Explanation: Dynamo does not support tracing `Tensor.item()` with config.capture_scalar_outputs=False.
  Hint: Set `torch._dynamo.config.capture_scalar_outputs = True`.

  Developer debug context: call_method TensorVariable() item () {}

 For more details about this graph break, please visit: https://meta-pytorch.github.io/compile-graph-break-site/gb/gb0124.html

Stack variable source attribution:
  NullVariable originated from:
  File "/home/me/train.py", line 99
        print(x.sum().item())

User code traceback:
  File "/home/me/train.py", line 55, in step
    loss = model(x).sum()
           ^^^^^^^^^^^^^^
  File "/home/me/model.py", line 17, in forward
    print(x.sum().item())

Traceback (most recent call last):
  File "/venv/lib/python3.11/site-packages/torch/_dynamo/symbolic_convert.py", line 1076, in wrapper
    return inner_fn(self, inst)
"""
OLD_BREAK = """Graph break in user code at /home/me/train.py:17
Reason: Unsupported: call_function BuiltinVariable(print) [ConstantVariable()] {}
User code traceback:
  File "/home/me/train.py", line 17, in forward
    print("x")
"""
LOOP = BREAK.replace(
    "Stack variable",
    "*** While handling this graph break, another graph break occurred: ***\n\ngraph break in loop\n"
    "  Explanation: torch.compile detected a graph break in a for/while loop. Skipping the frame.\nStack variable",
)


def record(header: dict[str, Any], payload: str = "") -> str:
    lines = "".join(f"\t{line}\n" for line in payload.splitlines())
    return f"V1121 12:56:07.760000 7976 torch/_dynamo/x.py:5098] {json.dumps(header)}\n{lines}"


def artifact(name: str, compile_id: tuple[int, int], payload: str, **more: Any) -> str:
    frame, recompile = compile_id
    header = {
        "artifact": {"name": name},
        "frame_id": frame,
        "frame_compile_id": recompile,
        "attempt": 0,
        **more,
    }
    return record(header, payload)


def read(tmp_path: Path, text: str | bytes) -> CompileLog:
    path = tmp_path / "dedicated_log_torch_trace_x.log"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return load_torch_trace(path, path.name)


def test_a_break_has_its_reason_hints_and_line(tmp_path: Path) -> None:
    log = read(tmp_path, artifact("dynamo_graph_break_reason", (0, 0), BREAK))
    [said] = log.breaks
    assert said.reason == "Unsupported Tensor.item() call with capture_scalar_outputs=False"
    assert said.gb == "GB0124"
    assert said.hints == ("Set `torch._dynamo.config.capture_scalar_outputs = True`.",)
    assert said.site == LogFrame("/home/me/model.py", 17, "forward")
    assert [f.line for f in said.stack] == [55, 17]
    assert not said.skips_frame


def test_a_break_in_a_loop_gives_the_function_up(tmp_path: Path) -> None:
    [said] = read(tmp_path, artifact("dynamo_graph_break_reason", (1, 0), LOOP)).breaks
    assert said.skips_frame
    assert said.reason.startswith("Unsupported Tensor.item()")


def test_a_break_in_the_words_of_older_versions(tmp_path: Path) -> None:
    [said] = read(tmp_path, artifact("dynamo_graph_break_reason", (0, 0), OLD_BREAK)).breaks
    assert said.reason.startswith("Unsupported: call_function BuiltinVariable(print)")
    assert said.site == LogFrame("/home/me/train.py", 17, "forward")
    assert said.gb == ""


@pytest.mark.parametrize(
    "payload",
    [
        "0/0: tensor 'x' size mismatch at index 0. expected 8, actual 9",
        "[\n\"0/0: tensor 'x' size mismatch at index 0. expected 8, actual 9\"\n]",
    ],
)
def test_recompile_reasons(tmp_path: Path, payload: str) -> None:
    [said] = read(tmp_path, artifact("recompile_reasons", (0, 1), payload)).recompiles
    assert said.compile_id == "0/1"
    assert said.reasons == ("tensor 'x' size mismatch at index 0. expected 8, actual 9",)


def test_compiles_name_their_function_from_metrics_or_the_start(tmp_path: Path) -> None:
    start = {"dynamo_start": {"stack": [{"line": 12, "name": "forward", "filename": 1}]}, "frame_id": 0}
    metrics = {
        "compile_id": "1/0",
        "co_name": "torch_dynamo_resume_in_forward_at_17",
        "co_filename": "/home/me/train.py",
        "co_firstlineno": 17,
        "entire_frame_compile_time_s": 0.25,
    }
    log = read(
        tmp_path,
        record({"str": ["/home/me/train.py", 1]})
        + record({**start, "frame_compile_id": 0})
        + record({"compilation_metrics": metrics, "frame_id": 1, "frame_compile_id": 0}),
    )
    assert [(c.compile_id, c.frame, c.seconds) for c in log.compiles] == [
        ("0/0", LogFrame("/home/me/train.py", 12, "forward"), None),
        ("1/0", LogFrame("/home/me/train.py", 17, "torch_dynamo_resume_in_forward_at_17"), 0.25),
    ]


@pytest.mark.parametrize(
    ("reason", "limits"),
    [
        (
            "Dynamo recompile limit exceeded\n  Explanation: Dynamo attempted to recompile the code object too many "
            "times, exceeding the recompile_limit cache size limit (currently set to 8).",
            (LoggedLimit("0/8", "recompile_limit", 8),),
        ),
        ("cache_size_limit reached", (LoggedLimit("0/8", "cache_size_limit", None),)),
        ("call_function BuiltinVariable(print)", ()),
        (None, ()),
    ],
    ids=["torch 2.8 and later", "before", "another failure", "none"],
)
def test_that_no_more_versions_are_made_is_read(
    tmp_path: Path, reason: str | None, limits: tuple[LoggedLimit, ...]
) -> None:
    metrics = {"compile_id": "0/8", "co_name": None, "fail_reason": reason}
    assert read(tmp_path, record({"compilation_metrics": metrics, "frame_id": 0})).limits == limits


def test_rank_version_and_compiled_autograd(tmp_path: Path) -> None:
    log = read(
        tmp_path,
        artifact("torch_version", (0, 0), '{"pytorch_version": "2.13.0+cpu"}', rank=3)
        + artifact("dynamo_graph_break_reason", (4, 1), BREAK, compiled_autograd_id=2),
    )
    assert log.rank == 3
    assert log.torch_version == "2.13.0+cpu"
    assert log.breaks[0].compile_id == "!2/4/1"


def test_junk_is_counted_and_the_rest_read(tmp_path: Path) -> None:
    good = artifact("dynamo_graph_break_reason", (0, 0), BREAK)
    text = (
        "some line of the job\n\torphan payload\n"
        + "V1121 12:56:07.760000 7976 torch/x.py:1] {not json\n\tpayload\n"
        + record({"compilation_metrics": 5})
        + record({"dynamo_start": {"stack": []}, "frame_id": 0})
        + good
        + 'V1121 12:56:08.000000 7976 torch/x.py:1] {"artifact": {"na'
    )
    log = read(tmp_path, text)
    assert len(log.breaks) == 1
    assert log.warnings == ("4 lines could not be read",)


def test_a_cut_gzip_gives_what_is_there(tmp_path: Path) -> None:
    good = artifact("dynamo_graph_break_reason", (0, 0), BREAK)
    filler = "".join(record({"x": i}) for i in range(20000))
    whole = gzip.compress((good + filler).encode())
    log = read(tmp_path, whole[: len(whole) // 2])
    assert len(log.breaks) == 1
    assert "the file ends early" in log.warnings


def test_a_file_without_a_structured_line_is_none(tmp_path: Path) -> None:
    with pytest.raises(NotACapture, match="not a TORCH_TRACE log"):
        read(tmp_path, "hello\nworld\n")


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300), st.integers(0, 400))
def test_damage_never_raises_anything_else(
    tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int
) -> None:
    text = artifact("dynamo_graph_break_reason", (0, 0), BREAK).encode()
    damaged = text[:at] + noise + text[at:]
    with contextlib.suppress(NotACapture):
        read(tmp_path_factory.mktemp("log"), damaged)
