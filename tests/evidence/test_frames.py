from __future__ import annotations

import pytest

from trace_doctor.loaders.torch_trace import LogFrame
from trace_doctor.testing import SnapshotBuilder
from trace_doctor.user_frames import Frame, is_user_frame, plain_path, python_frame


@pytest.mark.parametrize(
    "name",
    [
        "train.py",
        "src/model.py",
        "/home/me/project/train.py",
        r"C:\Users\me\train.py",
        "datasets/coco.py",
        "utils/misc.py",
        "/home/me/torch/train.py",
        "trace.py",
        "/tmp/ipykernel_12/3456.py",
    ],
)
def test_the_user_s_files(name: str) -> None:
    assert is_user_frame(name)


@pytest.mark.parametrize(
    "name",
    [
        "torch/nn/modules/module.py",
        "torch/_functorch/_aot_autograd/subclass_codegen.py:codegen(compiled_function_forward)",
        "/opt/conda/lib/python3.10/site-packages/transformers/trainer.py",
        "transformers/trainer.py",
        "numpy/_core/_methods.py",
        "datasets/arrow_dataset.py",
        "threading.py",
        "json/encoder.py",
        "/usr/lib/python3.11/contextlib.py",
        "/usr/lib/python3/dist-packages/yaml/__init__.py",
        "/workspace/pytorch/torch/_tensor.py",
        "/tmp/torchinductor_root/ab/cabc.py",
        r"C:\Python39\lib\threading.py",
        "<frozen importlib._bootstrap>",
        "<string>",
        "<eval_with_key>.4",
        "",
        "??",
        "/home/me/build/aten/src/ATen/RegisterCPU.cpp",
        "/usr/lib/x86_64-linux-gnu/libc.so.6",
    ],
)
def test_files_of_others(name: str) -> None:
    assert not is_user_frame(name)


@pytest.mark.parametrize(
    ("captured", "plain"),
    [
        ("/home/me/run/../train.py", "/home/me/train.py"),
        ("./train.py", "train.py"),
        ("a/b/../../train.py", "train.py"),
        ("../train.py", "../train.py"),
        (r"C:\me\run\..\train.py", r"C:\me\train.py"),
        ("a..b/train.py", "a..b/train.py"),
        ("<frozen importlib._bootstrap>", "<frozen importlib._bootstrap>"),
        ("", ""),
    ],
)
def test_one_file_has_one_name(captured: str, plain: str) -> None:
    assert plain_path(captured) == plain
    assert plain_path(plain) == plain


def test_frames_are_read_without_detours() -> None:
    assert python_frame("run/../train.py(3): main") == Frame("train.py", 3, "main")
    assert LogFrame("/home/me/run/../train.py", 3, "main") == LogFrame("/home/me/train.py", 3, "main")
    b = SnapshotBuilder()
    b.alloc(512, frames=[("/home/me/run/../train.py", 3, "main")])
    assert "/home/me/train.py" in {frame.filename for frame in b.snapshot().frames}
