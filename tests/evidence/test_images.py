"""Image tags are written only where such an image was published."""

from __future__ import annotations

import pytest

from trace_doctor.evidence.names.image_names import dockerfile, tag


@pytest.mark.parametrize(
    ("torch", "cuda", "expected"),
    [
        ("2.6.0+cu126", "12.6", "2.6.0-cuda12.6-cudnn9-runtime"),
        ("2.10.0", "13.0", "2.10.0-cuda13.0-cudnn9-runtime"),
        ("2.1.2", "11.8", "2.1.2-cuda11.8-cudnn8-runtime"),
        ("2.6.1", "12.6", None),
        ("2.6", "12.6", None),
        ("2.6.0", "12.1", None),
        ("2.6.0rc1", "12.6", None),
        ("2.99.0", "12.6", None),
        ("", "", None),
    ],
)
def test_tags(torch: str, cuda: str, expected: str | None) -> None:
    assert tag(torch, cuda) == expected


def test_without_an_image_pytorchs_own_packages() -> None:
    assert "torch==2.13.0 --index-url https://download.pytorch.org/whl/cu130" in dockerfile(
        "2.13.0+cu130", "13.0"
    )
    assert dockerfile("2.4.1", "12.4").startswith("FROM pytorch/pytorch:2.4.1-cuda12.4-cudnn9-runtime\n")
