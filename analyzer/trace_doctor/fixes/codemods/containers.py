"""`pin-container`: the image that a program runs in has the versions that were captured."""

from __future__ import annotations

import re
from collections.abc import Mapping

from trace_doctor.evidence.names.image_names import FLAVOURS, REPOSITORY, tag
from trace_doctor.fixes.codemods import codemod
from trace_doctor.fixes.frameworks.launchers import candidate_at
from trace_doctor.model.parameters import PinContainer
from trace_doctor.program.edits import Candidate, Change, Edit, NoEdit
from trace_doctor.program.place import Place
from trace_doctor.program.text_file import TextFile

_FROM = re.compile(
    r"(?mi)^[ \t]*FROM[ \t]+(?:--\S+[ \t]+)*(?:docker\.io/)?"
    rf"(?P<image>{REPOSITORY})(?P<tag>:[^\s@]*)?(?P<digest>@\S+)?(?=[ \t]*$|[ \t]*\r|[ \t]+AS[ \t])"
)
_VARIABLE = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")
_ARG = re.compile(
    r"""(?mi)^[ \t]*ARG[ \t]+(?P<name>\w+)=(?P<quote>["']?)(?P<value>[\w.+-]+)(?P=quote)[ \t]*\r?$"""
)


@codemod(
    "pin-container",
    PinContainer,
    adds="cuda cudnn runtime devel",
    scope="call",
    words=("torch", "lightning", "transformers", "accelerate"),
)
def pin_container(place: Place, params: PinContainer) -> Change:
    """Gives the official PyTorch image of a Dockerfile the tag with the captured versions.

    params: `torch` (2.6.0), `cuda` (12.6). The flavour (runtime, devel) stays.
    """
    torch, cuda = params.torch, params.cuda
    files = place.program.files("Dockerfile")
    images = [(file, match) for file in files for match in _FROM.finditer(file.text)]
    if not images:
        raise NoEdit("unresolved", f"no Dockerfile below the source folder starts from {REPOSITORY}")
    where = [candidate_at(file, match.start()) for file, match in images]
    if len(images) > 1:
        raise NoEdit("ambiguous", f"{len(images)} images start from {REPOSITORY}", where)
    file, match = images[0]
    tag_text = (match["tag"] or "").removeprefix(":")
    arguments = _arguments(file, match)
    if match["digest"] or arguments is None:
        raise NoEdit("display", "the image is chosen by an argument or a digest", where)
    now = _VARIABLE.sub(lambda v: arguments[v[1]]["value"], tag_text)
    flavour = next((f for f in FLAVOURS if now.endswith(f)), FLAVOURS[0])
    new = tag(torch, cuda, flavour)
    if new is None:
        why = f"no official image is known for PyTorch {torch or '?'} with CUDA {cuda or '?'}"
        raise NoEdit("display", why, where)
    if now == new:
        raise NoEdit("already", f"{file.name}:{where[0].line} starts from {new} already")
    if arguments:
        return _change_arguments(file, arguments, tag_text, new, where)
    end = match.end("tag" if match["tag"] else "image")
    edit = Edit(match.end("image"), end, f":{new}", "image", new)
    return Change(file, (edit,), where[0].line)


def _arguments(file: TextFile, image: re.Match[str]) -> dict[str, re.Match[str]] | None:
    """The `ARG NAME=default` above an image for each variable of its tag; None where one has no single default, or is
    used for anything else."""
    by_name: dict[str, re.Match[str]] = {}
    for name in _VARIABLE.findall(image["tag"] or ""):
        defaults = [a for a in _ARG.finditer(file.text, 0, image.start()) if a["name"] == name]
        uses = [u for u in _VARIABLE.finditer(file.text) if u[1] == name]
        declarations = len(re.findall(rf"(?mi)^[ \t]*(?:ARG|ENV)[ \t]+{name}\b", file.text))
        if len(defaults) != 1 or len(uses) != 1 or declarations != 1:
            return None
        by_name[name] = defaults[0]
    return by_name if "$" not in _VARIABLE.sub("", image["tag"] or "") else None


def _change_arguments(
    file: TextFile, arguments: Mapping[str, re.Match[str]], tag_text: str, new: str, where: list[Candidate]
) -> Change:
    """The defaults with which a tag of variables is the wanted one."""
    pattern, at = "", 0
    for variable in _VARIABLE.finditer(tag_text):
        pattern += re.escape(tag_text[at : variable.start()]) + f"(?P<{variable[1]}>.+)"
        at = variable.end()
    values = re.fullmatch(pattern + re.escape(tag_text[at:]), new)
    if values is None:
        raise NoEdit("display", f"the image is chosen by arguments, none of which give {new}", where)
    edits = [
        Edit(a.start("value"), a.end("value"), values[name], f"arg:{name}", values[name])
        for name, a in arguments.items()
        if a["value"] != values[name]
    ]
    notes = ("a build that passes --build-arg decides itself",)
    return Change(file, tuple(edits), file.line_of(edits[0].start), notes=notes)
