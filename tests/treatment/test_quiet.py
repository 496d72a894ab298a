"""What else the machine does is said before the first trial, and does what the user asked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from trace_doctor.errors import UsageError
from trace_doctor.recording.launch import Recorded
from trace_doctor.recording.processes import Meter, OtherLoad
from trace_doctor.treatment import TreatOptions
from trace_doctor.treatment.quiet import MORE_PAIRS, IfBusy, look_around

CONTENDED = "waited 40% of the time for a CPU"
ON_GPU = "other processes kept the GPU busy 35% of the time"


def recorded(waited: float, others: OtherLoad) -> Recorded:
    return Recorded(Path(), 0, True, 9.0, None, (), waited_for_cpu={0: waited}, others=others)


@pytest.mark.parametrize(
    ("waited", "others", "said"),
    [
        (0.4, OtherLoad(1.5), CONTENDED),
        (0.4, OtherLoad(None), CONTENDED),
        (0.0, OtherLoad(0.0, 35), ON_GPU),
        (0.4, OtherLoad(0.1), ""),  # its own workers are in each other's way: no waiting helps
        (0.02, OtherLoad(1.5, 3), ""),  # others run, on cores that nobody misses
    ],
)
def test_a_busy_machine_takes_more_pairs_or_ends_it(waited: float, others: OtherLoad, said: str) -> None:
    lines: list[str] = []
    one = recorded(waited, others)
    more, line = look_around(one, "more", 60.0, lines.append)
    assert (more, said in line, bool(line)) == (MORE_PAIRS * bool(said), True, bool(said))
    assert [said in text for text in lines] == [True] * bool(said)
    if said:
        with pytest.raises(UsageError, match=said):
            look_around(one, "stop", 60.0, lines.append)
    else:
        assert look_around(one, "stop", 60.0, lines.append) == (0, "")


@pytest.mark.parametrize(("cpus", "quiet"), [(0.0, True), (2.0, False)])
def test_it_waits_for_a_quiet_machine_and_not_for_ever(
    cpus: float, quiet: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [0.0]
    monkeypatch.setattr("trace_doctor.treatment.quiet.time.sleep", lambda s: now.__setitem__(0, now[0] + s))
    monkeypatch.setattr("trace_doctor.treatment.quiet.time.monotonic", lambda: now[0])
    monkeypatch.setattr(Meter, "read", lambda self: OtherLoad(cpus))
    lines: list[str] = []
    more, _ = look_around(recorded(0.4, OtherLoad(1.5)), "wait", 400.0, lines.append)
    assert (more, "waiting up to 100 s" in lines[0]) == (0 if quiet else MORE_PAIRS, True)
    assert now[0] <= 101


def test_the_gpus_that_the_command_may_use_are_asked(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text('#!/bin/sh\ncase "$*" in *"-i 1"*) echo 0;; *) echo 0; echo 87;; esac\n')
    program.chmod(0o755)
    place = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert Meter(place).read().gpu_percent == 87
    assert Meter({**place, "CUDA_VISIBLE_DEVICES": "1"}).read().gpu_percent == 0
    assert Meter({**place, "CUDA_VISIBLE_DEVICES": ""}).read().gpu_percent is None
    program.write_text("#!/bin/sh\necho 'Failed to initialize NVML'\nexit 9\n")
    assert Meter(place).read().gpu_percent is None


def test_another_word_is_refused() -> None:
    choice: IfBusy = "never"  # type: ignore[assignment]
    with pytest.raises(UsageError, match="--if-busy: more, wait or stop"):
        TreatOptions(if_busy=choice)
