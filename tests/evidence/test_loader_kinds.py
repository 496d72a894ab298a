from __future__ import annotations

import pytest

from trace_doctor.evidence.idle.data_loading import loader_kind


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "in_process"),
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "workers"),
        ("enumerate(DataPipe)#ShufflerIterDataPipe", "pipe"),
        ("fetch batch", "other"),
    ],
)
def test_what_the_name_of_a_wait_proves(name: str, kind: str) -> None:
    assert loader_kind(name) == kind
