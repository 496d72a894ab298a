"""TD005 environment-drift."""

from __future__ import annotations

from collections.abc import Iterator

from trace_doctor import Claim, Column, Context, Rule, Table
from trace_doctor.evidence.distributed.ranks import listed, ranks_text
from trace_doctor.testing import Invalid, RunBuilder, Valid
from trace_doctor_rules import techniques
from trace_doctor_rules.capture._environment_drift_evidence import Environments


def _job(**differs: str) -> tuple[RunBuilder, ...]:
    """Three ranks; the second has these entries instead."""
    ranks = []
    for rank in range(3):
        gpu = differs.get("gpu", "") if rank == 1 else ""
        b = RunBuilder(rank=rank, world_size=3, gpu=gpu or "NVIDIA H100 80GB HBM3")
        b.meta |= {"cuda_runtime_version": 12060, "cuda_driver_version": 12080}
        if rank == 1:
            b.meta |= {k: v for k, v in differs.items() if k != "gpu"}
        for _ in b.steps(3):
            b.run_op("aten::mm", 100)
            b.sync()
        ranks.append(b)
    return tuple(ranks)


class EnvironmentDrift(Rule):
    """The ranks of one job run on different software or different GPUs.

    What it does
    Compares what the traces of all ranks of a job say about GPU, CUDA, driver, NCCL and PyTorch.

    Why is this bad
    A slower GPU or another library version on one rank sets the pace of all, gives results that differ in the last
    bits, and can end in hangs that no profile shows.

    Evidence
    Device properties and versions in the traces of two or more ranks that were recorded at the same time. What only
    some of the files name is not compared.

    How the saving is estimated
    None is claimed.

    Fix
    One image for all hosts: a Dockerfile with the versions that most ranks have.

    Fix safety
    Only shown.

    When to ignore
    When the job is meant to run on mixed hardware.

    References
    https://hub.docker.com/r/pytorch/pytorch/tags
    """

    code = "TD005"
    name = "environment-drift"
    title = "Ranks run in different environments"
    needs = (Environments,)

    VALID = [
        Valid("the same everywhere", _job),
        Valid("one rank alone", lambda: _job()[0], skipped="fewer than two ranks"),
    ]
    INVALID = [
        Invalid(
            "another driver, and an unknown runtime",
            lambda: _job(cuda_driver_version="12040", cuda_runtime_version="?"),
            shown="1 | rank 1 | NVIDIA H100 80GB HBM3 | not recorded | 12.4",
        ),
        Invalid(
            "another GPU of two", lambda: _job(gpu="NVIDIA A100-SXM4-80GB")[:2], message="2 ranks differ"
        ),
        Invalid("another GPU", lambda: _job(gpu="NVIDIA A100-SXM4-80GB"), message="GPU", severity="warning"),
        Invalid(
            "another driver",
            lambda: _job(cuda_driver_version="12040"),
            message="CUDA driver (12.8 / 12.4 on rank 1)",
            severity="info",
            shown="2 | ranks 0 and 2 | NVIDIA H100 80GB HBM3 | 12.6 | 12.8",
        ),
    ]

    def check(self, ctx: Context) -> Iterator[Claim]:
        environments = ctx[Environments]
        if ctx.rank != environments.ranks[0] or not environments.differing:
            return
        serious = set(environments.differing) - {"CUDA driver"}
        differences = [f"{what} ({' / '.join(environments.told(what))})" for what in environments.differing]
        yield Claim(
            message=f"{len(environments.ranks)} ranks differ in {listed(differences)}.",
            confidence="high",
            severity="warning" if serious else "info",
            evidence=[
                Table(
                    title="Ranks by environment",
                    columns=[
                        Column("ranks", "count"),
                        Column("which"),
                        *(Column(what) for what in environments.values),
                    ],
                    rows=[
                        [len(ranks), ranks_text(ranks), *(value or "not recorded" for value in of)]
                        for of, ranks in environments.by_value(*environments.values)
                    ],
                )
            ],
            fixes=[techniques.one_image(environments.dockerfile(), "Record all ranks again: TD005 is gone")],
            key=",".join(environments.differing),
        )
