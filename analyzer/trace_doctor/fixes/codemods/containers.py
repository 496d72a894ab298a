"""`pin-container`: the image that a program runs in has the versions that were captured."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trace_doctor.evidence.images import FLAVOURS, REPOSITORY, tag
from trace_doctor.fixes.codemods import Place, codemod
from trace_doctor.fixes.edits import Change, Edit, NoEdit
from trace_doctor.fixes.launchers import shown

_FROM = re.compile(
    r"(?mi)^[ \t]*FROM[ \t]+(?:--\S+[ \t]+)*(?:docker\.io/)?"
    rf"(?P<image>{REPOSITORY})(?P<tag>:[^\s@]*)?(?P<digest>@\S+)?(?=[ \t]*$|[ \t]*\r|[ \t]+AS[ \t])"
)


@codemod("pin-container", scope="call", words=("torch", "lightning", "transformers", "accelerate"))
def pin_container(place: Place, params: Mapping[str, Any]) -> Change:
    """Gives the official PyTorch image of a Dockerfile the tag with the captured versions.

    params: `torch` (2.6.0), `cuda` (12.6). The flavour (runtime, devel) stays.
    """
    torch, cuda = str(params.get("torch") or ""), str(params.get("cuda") or "")
    files = place.program.files("Dockerfile")
    found = [(file, match) for file in files for match in _FROM.finditer(file.text)]
    if not found:
        raise NoEdit("unresolved", f"no Dockerfile below the source folder starts from {REPOSITORY}")
    where = [shown(file, match.start()) for file, match in found]
    if len(found) > 1:
        raise NoEdit("ambiguous", f"{len(found)} images start from {REPOSITORY}", where)
    file, match = found[0]
    now = (match["tag"] or "").removeprefix(":")
    if "$" in now or match["digest"]:
        raise NoEdit("display", "the image is chosen by an argument or a digest", where)
    flavour = next((f for f in FLAVOURS if now.endswith(f)), FLAVOURS[0])
    wanted = tag(torch, cuda, flavour)
    if wanted is None:
        raise NoEdit(
            "display", f"no official image is known for PyTorch {torch or '?'} with CUDA {cuda or '?'}", where
        )
    if now == wanted:
        raise NoEdit("already", f"{file.name}:{where[0].line} starts from {wanted} already")
    edit = Edit(
        match.end("image"), match.end("tag" if match["tag"] else "image"), f":{wanted}", "image", wanted
    )
    return Change(file, (edit,), where[0].line)
