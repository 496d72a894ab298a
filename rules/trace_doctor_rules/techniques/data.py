"""Loading and copying data."""

from __future__ import annotations

from trace_doctor import Fix, Target
from trace_doctor_rules.techniques._making import patch


def pinned_copies(verify: str, target: Target | None = None) -> Fix:
    return patch(
        "Copy batches from pinned memory without waiting",
        "pinned-copies",
        "loader = DataLoader(..., pin_memory=True)\nx = x.to(device, non_blocking=True)\n"
        "# Accelerate: DataLoaderConfiguration(non_blocking=True); Lightning: pin_memory=True of the loader is enough",
        "pinned memory cannot be swapped; never do the same on the way back without a synchronise",
        verify,
        safety="safe",
        target=target,
    )


def persistent_workers(verify: str, workers: int | None = None, target: Target | None = None) -> Fix:
    """`workers`: how many there are, where the capture says so."""
    return patch(
        "Keep the worker processes from epoch to epoch",
        "dataloader-args",
        "DataLoader(..., num_workers=4, persistent_workers=True)   # HF: dataloader_persistent_workers=True",
        "the dataset object of a worker lives on: what it changes in itself lasts from epoch to epoch",
        verify,
        params={"persistent_workers": True, **({"num_workers": workers} if workers else {})},
        target=target,
    )


def shard_iterable(verify: str) -> Fix:
    return patch(
        "With an IterableDataset: let each worker take its share first",
        "shard-iterable",
        "def __iter__(self):\n    samples = self.read()\n    info = torch.utils.data.get_worker_info()\n"
        "    if info is not None:\n"
        "        samples = itertools.islice(samples, info.id, None, info.num_workers)\n    yield from samples",
        "without this every worker delivers the whole dataset",
        verify,
        safety="display",
    )
