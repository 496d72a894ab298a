"""Which of several processes one is: what launchers say is believed within what can be."""

from __future__ import annotations

import pytest

from trace_doctor.recording.agent.ranks import rank_and_size


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"RANK": "1", "WORLD_SIZE": "2"}, (1, 2)),
        ({"RANK": "-1", "WORLD_SIZE": "1"}, (0, 1)),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, (0, 1)),
        ({"RANK": "2", "WORLD_SIZE": "2"}, (0, 1)),
        ({"RANK": "0", "WORLD_SIZE": "0"}, (0, 1)),
        ({"RANK": "0", "WORLD_SIZE": "-1"}, (0, 1)),
        ({"RANK": "one", "WORLD_SIZE": "2"}, (0, 1)),
        ({"RANK": "1"}, (0, 1)),
        ({"RANK": "-1", "WORLD_SIZE": "1", "SLURM_PROCID": "3", "SLURM_NTASKS": "4"}, (3, 4)),
    ],
)
def test_a_rank_that_cannot_be_is_none(environment: dict[str, str], expected: tuple[int, int]) -> None:
    """Such a one would name files that nobody takes for a recording's."""
    assert rank_and_size({}, environment) == expected
