from __future__ import annotations

import pytest

from trace_doctor.evidence.frames import is_user_frame


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
