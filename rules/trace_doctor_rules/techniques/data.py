"""Loading and copying data."""

from __future__ import annotations

from typing import Any

from trace_doctor import Fix, Target
from trace_doctor_rules._shared import advice, advised, patch, patched

_DEFAULT_PREFETCH = 2
"""batches that each worker of a DataLoader prepares ahead"""
_WORKERS_RISK = (
    "each worker has its own random state, so augmentation and losses change; each holds a copy of the dataset object; "
    "spawned workers need a script guarded by __main__"
)


def start_workers(workers: int, verify: str, *, pin: bool, prefetch: int, target: Target | None) -> Fix:
    """`pin`: batches go to a GPU."""
    return patch(
        f"Set num_workers={workers}",
        "dataloader-args",
        "DataLoader(\n    dataset,\n    ...,\n    " + ",\n    ".join(_shown(workers, pin, prefetch)) + ",\n)",
        _WORKERS_RISK,
        verify,
        params=_arguments(workers, pin, prefetch),
        target=target,
    )


def start_workers_in_trainer(workers: int, verify: str, *, pin: bool, prefetch: int) -> Fix:
    """Shown beside `start_workers`: the same arguments as the Trainer calls them."""
    arguments = ",\n    ".join(f"dataloader_{argument}" for argument in _shown(workers, pin, prefetch))
    return Fix(
        title="Set dataloader_num_workers in TrainingArguments",
        kind="config",
        safety="display",
        framework="transformers",
        text=f"TrainingArguments(\n    ...,\n    {arguments},\n)",
        verify=verify,
        risk=_WORKERS_RISK,
    )


def start_workers_in_lightning(workers: int, verify: str, *, pin: bool, prefetch: int) -> Fix:
    """Shown beside `start_workers`: the same arguments, in the DataModule."""
    arguments = ",\n        ".join(_shown(workers, pin, prefetch))
    return Fix(
        title="Set num_workers in the loaders of the DataModule",
        kind="config",
        safety="display",
        framework="lightning",
        text="def train_dataloader(self):\n    return DataLoader(\n        self.train_set,\n        ...,\n        "
        f"{arguments},\n    )",
        verify=verify,
        risk=_WORKERS_RISK,
    )


def _arguments(workers: int, pin: bool, prefetch: int) -> dict[str, Any]:
    """Without what DataLoader does by default."""
    arguments = {"num_workers": workers, "pin_memory": pin, "persistent_workers": True}
    return arguments if prefetch == _DEFAULT_PREFETCH else {**arguments, "prefetch_factor": prefetch}


def _shown(workers: int, pin: bool, prefetch: int) -> list[str]:
    return [
        f"{name}={value}" for name, value in _arguments(workers, pin, prefetch).items() if value is not False
    ]


def more_workers(late: str, verify: str, *, pin: bool) -> Fix:
    """`late`: a sentence that says by how much."""
    return advice(
        "Add workers, or make samples cheaper",
        f"{late}\nDataLoader(..., num_workers=<more, up to the cores of the machine>, prefetch_factor=4, "
        f"persistent_workers=True{', pin_memory=True' if pin else ''})\n"
        "If all cores are busy: decode smaller images, cache decoded samples, or move augmentation to the GPU.",
        "workers beyond the cores slow each other down; prefetching costs host memory",
        verify,
    )


def free_cores(verify: str) -> Fix:
    """A variable for loaders and launches that wait for the same cores: more workers would wait as well."""
    return Fix(
        title="Give the job more cores, or fewer threads",
        kind="env",
        safety="unsafe",
        text="OMP_NUM_THREADS=1 python train.py\n# cores that it may use: nproc; threads that want one: top -H, or cat /proc/loadavg\n"
        "# all ranks, their workers and their intra-op threads share them: OMP_NUM_THREADS=1, torch.set_num_threads(1) in workers,\n"
        "# fewer workers per rank (cores / ranks - 2), ranks pinned to cores of their own, other jobs elsewhere",
        risk="fewer threads make each operator on the CPU slower",
        verify=verify,
    )


def work_ahead(late: str, verify: str) -> Fix:
    """`late`: a sentence that says by how much."""
    return advice(
        "Prefetch batches ahead of the loop",
        f"{late} Give it more threads or a deeper prefetch queue (DALI: num_threads, prefetch_queue_depth; WebDataset: "
        "WebLoader with num_workers; a generator: fill a queue.Queue from a thread), or cache decoded samples.",
        "prefetching costs host memory",
        verify,
    )


pinned_copies = patched(
    "Use pin_memory=True and non_blocking=True",
    "pinned-copies",
    "loader = DataLoader(..., pin_memory=True)\nx = x.to(device, non_blocking=True)\n"
    "# Accelerate: DataLoaderConfiguration(non_blocking=True); Lightning: pin_memory=True of the loader is enough",
    "a batch that is modified while it is copied arrives modified; pinned memory cannot be swapped; a copy to the host that "
    "does not block needs a synchronization before it is read",
)
"""An edit of loader and copies together: either alone still waits."""


def persistent_workers(verify: str, *, evaluation: bool = False) -> Fix:
    """`evaluation`: the loader that evaluates between the epochs starts its workers anew, too."""
    return patch(
        "Set persistent_workers=True",
        "dataloader-args",
        "DataLoader(..., num_workers=4, persistent_workers=True)   # HF: dataloader_persistent_workers=True",
        "the dataset object of a worker lives on: what it changes in itself lasts from epoch to epoch",
        verify,
        params={"persistent_workers": True, **({"evaluation": True} if evaluation else {})},
    )


shard_iterable = advised(
    "Shard the IterableDataset across workers",
    "def __iter__(self):\n    samples = self.read()\n    info = torch.utils.data.get_worker_info()\n"
    "    if info is not None:\n"
    "        samples = itertools.islice(samples, info.id, None, info.num_workers)\n    yield from samples",
    "without this every worker delivers the whole dataset",
)
"""Advice: reads every sample in every worker, and delivers a share of them."""
