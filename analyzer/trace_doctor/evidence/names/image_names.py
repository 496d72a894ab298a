"""Names of the official images of PyTorch: `pytorch/pytorch:2.6.0-cuda12.6-cudnn9-runtime`.

Which combinations were published, as far as is known: https://hub.docker.com/r/pytorch/pytorch/tags
"""

from __future__ import annotations

import re
from collections.abc import Mapping

_REPOSITORY = "pytorch/pytorch"
_PUBLISHED: Mapping[str, tuple[int, int, tuple[str, ...]]] = {
    "2.0": (1, 8, ("11.7",)),
    "2.1": (2, 8, ("11.8", "12.1")),
    "2.2": (2, 8, ("11.8", "12.1")),
    "2.3": (1, 8, ("11.8", "12.1")),
    "2.4": (1, 9, ("11.8", "12.1", "12.4")),
    "2.5": (1, 9, ("11.8", "12.1", "12.4")),
    "2.6": (0, 9, ("11.8", "12.4", "12.6")),
    "2.7": (1, 9, ("11.8", "12.6", "12.8")),
    "2.8": (0, 9, ("12.6", "12.8", "12.9")),
    "2.9": (1, 9, ("12.6", "12.8", "13.0")),
    "2.10": (0, 9, ("12.6", "12.8", "13.0")),
}
"""release -> its last patch, its cuDNN, its versions of CUDA"""


def tag(torch: str, cuda: str) -> str | None:
    """Tag of the image with these versions (`2.6.0+cu126`, `12.6`); None where none is known to be published."""
    match = re.match(r"(\d+\.\d+)\.(\d+)(?![\d.]|rc|a|b|\.?dev)", torch)
    known = _PUBLISHED.get(match[1]) if match else None
    if match is None or known is None or int(match[2]) > known[0] or cuda not in known[2]:
        return None
    return f"{match[0]}-cuda{cuda}-cudnn{known[1]}-runtime"


def dockerfile(torch: str, cuda: str) -> str:
    """An image with these versions: the official one, else PyTorch's own packages; what is not known is left to fill in."""
    image = tag(torch, cuda)
    if image is not None:
        first = f"FROM {_REPOSITORY}:{image}\n"
    else:
        plain = torch.partition("+")[0] or "<version of PyTorch>"
        index = f"cu{cuda.replace('.', '')}" if cuda else "<cu126, cu128, ...>"
        first = (
            "FROM python:3.11-slim\n"
            f"RUN pip install --no-cache-dir torch=={plain} --index-url https://download.pytorch.org/whl/{index}\n"
        )
    return first + "COPY requirements.txt .\nRUN pip install --no-cache-dir -r requirements.txt\n"
