"""What is advised where code is compiled again and again, by what PyTorch says of it."""

from __future__ import annotations

import pytest

from trace_doctor_rules.compile._recompile_fixes import fixes


@pytest.mark.parametrize(
    ("changed", "same_shapes", "titles"),
    [
        ("tensor 'L['x']' size mismatch at index 0. expected 8, actual 9", False, ["Set dynamic=True", "Call", "Pad in"]),
        ("[8, 32] became [9, 32]", False, ["Set dynamic=True", "Call", "Pad in"]),
        ("L['scale'] == 0.5", False, ["Pass changing"]),
        ("tensor 'L['x']' requires_grad mismatch. expected requires_grad=1", False, ["Keep guarded"]),
        ("___check_obj_id(L['self'], 140)", False, ["Run with"]),
        ("", True, ["Run with", "Pass changing"]),
    ],
)  # fmt: skip
def test_the_guard_that_failed_tells_what_to_do(changed: str, same_shapes: bool, titles: list[str]) -> None:
    found = [fix.title for fix in fixes("train.py", [changed] if changed else [], same_shapes)]
    assert [title[: len(part)] for title, part in zip(found, titles, strict=True)] == titles


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ("tensor 'L['x']' size mismatch at index 1", "x, 1)"),
        ("tensor 'L['self'].w' size mismatch at index 1", ""),
        ("[8, 32] became [9, 32]", ""),
    ],
)
def test_a_tensor_that_pytorch_names_is_marked_in_the_script(changed: str, said: str) -> None:
    mark = fixes("train.py", [changed], same_shapes=False)[1]
    assert (mark.codemod is not None) == bool(said)
    assert said in (mark.text or "")
