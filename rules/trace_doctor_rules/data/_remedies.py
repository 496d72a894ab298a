"""What helps a loader that does not deliver in time, by how much it is late."""

from __future__ import annotations

from math import ceil
from statistics import median

from trace_doctor import Fix, Target
from trace_doctor.evidence.durations import milliseconds
from trace_doctor.evidence.host.data_waits import DataWaits
from trace_doctor_rules import techniques
from trace_doctor_rules._shared import advice, advised

_COUNT = "count the samples of one epoch with and without workers: the numbers must agree"


def workers_that_keep_up(data_waits: DataWaits, headroom: float) -> int:
    """As many as load while the rest of a step runs; `headroom`: times as many, for workers share cores."""
    rest = max(data_waits.length - data_waits.exposed, 1)
    return max(2, ceil(headroom * data_waits.loading / rest))


def load_in_workers(
    data_waits: DataWaits, workers: int, verify: str, target: Target | None, *, indexed: bool
) -> list[Fix]:
    """For a loader without any. `indexed`: every sample has a number, so that workers share them by themselves."""
    lengths = [end - start for start, end in data_waits.waits]
    pin, prefetch = data_waits.device is not None, 4 if max(lengths) > 2 * median(lengths) else 2
    fixes = [
        techniques.start_workers(workers, verify, pin=pin, prefetch=prefetch, target=target),
        techniques.start_workers_in_trainer(workers, verify, pin=pin, prefetch=prefetch),
        techniques.start_workers_in_lightning(workers, verify, pin=pin, prefetch=prefetch),
    ]
    return fixes if indexed else [*fixes, techniques.shard_iterable(_COUNT)]


def more_workers(data_waits: DataWaits, verify: str) -> Fix:
    """For a loader whose workers are late."""
    rest = (data_waits.length - data_waits.exposed) / data_waits.count
    late = (
        f"The workers are late by {milliseconds(data_waits.per_step / 1e3)} per step: they need about "
        f"{ceil((data_waits.per_step + rest) / max(rest, 1) * 10) / 10:g} times the throughput."
    )
    return techniques.more_workers(late, verify, pin=data_waits.device is not None)


def work_ahead(data_waits: DataWaits, verify: str) -> Fix:
    """For loaders of other kinds."""
    return techniques.work_ahead(
        f"The loop waits {milliseconds(data_waits.per_step / 1e3)} per step for this loader.", verify
    )


def call_without_pipeline(verify: str, title: str = "Call processor and model without the pipeline") -> Fix:
    """For the preprocessing of a `transformers` pipeline: those that split an input into chunks take no more than one
    worker, and preprocess the input again for each chunk.

    Source: `ChunkPipeline.get_iterator` in transformers/pipelines/base.py ("setting `num_workers=1` to guarantee correctness").
    """
    return advice(
        title,
        "inputs = processor(images=image, text=labels, return_tensors='pt').to(device)   # once for each input\n"
        "outputs = model(**inputs)\n"
        "# a pipeline that makes one input of each item also takes: pipe(dataset, num_workers=..., batch_size=...)",
        "the pipeline's postprocessing is yours then: processor.post_process_...",
        verify,
    )


fewer_batches = advised(
    "Increase the batch size, or drop the loader",
    "DataLoader(dataset, batch_size=<larger>)\n"
    "# a data set that is in memory needs no loader:\n"
    "for index in torch.randperm(len(x), device=x.device).split(batch_size):\n"
    "    train(x[index], y[index])",
    "in training another batch size changes the result; without the loader samples come in another order",
)
"""For batches that take less time than a worker needs to hand one over."""
