"""Out of memory: on one device while others are nearly empty, and what each fix gives of what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from trace_doctor import analyze
from trace_doctor.model import Finding
from trace_doctor.reporters import render
from trace_doctor.testing import GIB, MIB, SnapshotBuilder

Frame = tuple[str, int, str]
MODULE: Frame = ("/venv/site-packages/torch/nn/modules/module.py", 1790, "_call_impl")
CHECKPOINT: Frame = ("/venv/site-packages/torch/utils/checkpoint.py", 496, "checkpoint")
FIX = "Place layers on the other GPUs"


def out_of_memory(folder: Path, *held: int, recorded: bool = False, name: str = "snapshot.pickle") -> Finding:
    """GPU 0 fails at 8 GiB; the others hold so many bytes."""
    first = SnapshotBuilder()
    first.held(7 * GIB)
    with first.forward("/home/me/model.py", 7):
        first.alloc(GIB)
        first.oom(2 * GIB, device_free=100 * MIB)
    for device, size in enumerate(held, start=1):
        other = SnapshotBuilder(device=device)
        other.held(size)
        if recorded:
            with other.forward("/home/me/model.py", 9):
                other.temporary(MIB, MIB)
        first.beside(other)
    path = first.write(folder / name)
    (finding,) = [f for f in analyze(path).findings if f.code == "TD410"]
    return finding


@pytest.mark.parametrize("recorded", [False, True])
def test_nearly_empty_devices_are_the_advice(recorded: bool, tmp_path: Path) -> None:
    finding = out_of_memory(tmp_path, 7 * GIB, 100 * MIB, 200 * MIB, recorded=recorded)
    assert "on GPU 2 and GPU 3." in finding.message
    assert "This process reserves at most 2" in finding.message
    assert finding.fixes[0].title == FIX
    (table,) = [t for t in finding.evidence if t.title == "Other GPUs of this process"]
    assert [row[0] for row in table.rows] == [1, 2, 3]
    assert table.rows[0][1] >= 7 * GIB  # type: ignore[operator]
    assert {row[3] for row in table.rows} == {
        "over the record" if recorded else "when the snapshot was written"
    }


def test_full_devices_are_none(tmp_path: Path) -> None:
    finding = out_of_memory(tmp_path, 7 * GIB, 2 * GIB)
    assert "on GPU" not in finding.message
    assert "Largest category" in finding.message
    assert FIX not in [f.title for f in finding.fixes]


def test_the_devices_of_other_ranks_are_not_offered(tmp_path: Path) -> None:
    """One rank of several touches the first device of others by accident: a context, a stray tensor."""
    finding = out_of_memory(tmp_path, 10 * MIB, name="rank0_snapshot.pickle")
    assert "on GPU" not in finding.message
    assert FIX not in [f.title for f in finding.fixes]
    assert any(t.title == "Other GPUs of this process" for t in finding.evidence)


@pytest.mark.parametrize(("frames", "words"), [([], " without checkpointing"), ([CHECKPOINT], "")])
def test_the_headline_says_what_filled_the_memory(frames: list[Frame], words: str, tmp_path: Path) -> None:
    b = SnapshotBuilder()
    b.held(GIB)
    for _ in range(12):
        for line in range(3):
            here = [
                ("/home/me/model.py", 30 + line, "forward"),
                MODULE,
                *frames,
                ("/home/me/train.py", 9, "main"),
            ]
            b.alloc(80 * MIB, frames=here)
    with b.forward("/home/me/loss.py", 22, op="log_softmax"):
        b.oom(600 * MIB, device_free=100 * MIB)
    finding = next(f for f in analyze(b.write(tmp_path / "snapshot.pickle")).findings if f.code == "TD410")
    assert finding.title == (
        f"GPU ran out of memory: 2.81 GiB of 3.81 GiB are activations of 12 layers{words}; the loss requested 600 MiB more"
    )


@pytest.mark.captures
def test_what_follows_counts(captures_dir: Path) -> None:
    """The loss needs 166 MiB more than is free, and 807 MiB are cached. Its gradient, as large as the request, is next; the
    state of AdamW comes with the first step."""
    folder = captures_dir / "snapshots" / "cornell-sysphotonics_ccl-bench"
    result = analyze(next(iter(sorted(folder.glob("*rank0*")))))
    finding = next(f for f in result.findings if f.code == "TD410")
    assert "Backward is still to come and likely needs 4,008 MiB more" in finding.message
    assert "state of AdamW, up to 7,660 MiB, does not exist yet" in finding.message
    assert finding.title.endswith(
        "23.0 GiB of 33.7 GiB are activations of 16 layers without checkpointing; the loss requested 3.91 GiB more"
    )
    assert finding.missing_bytes == pytest.approx((166 + 4008 + 7660) * MIB, rel=0.001)
    alone = {f.title: f.short for f in finding.fixes}
    gives = {f.title: f.saving.bytes for f in finding.fixes if f.saving}
    assert any(
        f.saving and "this request and what follows in the step included" in f.saving.how
        for f in finding.fixes
    )
    assert gives["Checkpoint the remaining layers too"] == pytest.approx(
        21.0 * GIB, rel=0.002
    )  # 32 inputs stay
    assert [title for title, short in alone.items() if short == 0] == list(alone)[:3]
    assert list(alone)[:4] == [
        "Fuse the output layer with the loss",
        "Checkpoint the remaining layers too",
        "Accumulate gradients",
        "Compute the loss in chunks",
    ]
    assert alone["Compute the loss in chunks"] == pytest.approx((166 + 7660 - 4008) * MIB, rel=0.001)
    assert (
        alone["Enable expandable_segments"]
        == alone["Set max_split_size_mb"]
        == pytest.approx((3367 + 7660) * MIB, rel=0.001)
    )
    fragmented = next(f for f in result.findings if f.code == "TD402")
    assert "This is not enough alone: what follows would be 11,028 MiB short." in fragmented.message
    assert "not enough alone" in render(result, "html")
    assert next(o for o in result.outcomes if o.code == "TD407").reason.startswith(
        "no optimizer step recorded"
    )


def test_a_place_in_an_installed_package_is_named_from_the_package_on(tmp_path: Path) -> None:
    """The whole path stays where programs read it."""
    package = "/home/me/venv/lib/python3.12/site-packages/torchtitan"
    whole = f"{package}/components/loss.py"
    b = SnapshotBuilder(script=f"{package}/train.py")
    b.held(GIB)
    with b.forward(whole, 21):
        b.alloc(GIB)
        b.oom(2 * GIB, device_free=100 * MIB)
    result = analyze(b.write(tmp_path / "snapshot.pickle"), select=["TD410"])
    (finding,) = result.findings
    assert "in forward() (torchtitan/components/loss.py:21)" in finding.message
    assert finding.location.file == whole
    text = render(result, "text")
    assert "torchtitan/components/loss.py:21" in text and "site-packages" not in text
    assert whole in render(result, "json")
