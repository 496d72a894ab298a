"""What the ranks of a job ran on, as their traces say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, Self

from trace_doctor.errors import NotCaptured
from trace_doctor.evidence.base import Evidence, Facts
from trace_doctor.evidence.distributed.collectives import how_to_record_others
from trace_doctor.evidence.distributed.ranks import ranks_text
from trace_doctor.evidence.names.image_names import dockerfile
from trace_doctor.evidence.rank_summary import JobEvidence, RankSummary
from trace_doctor.run import Run


class Environment(Evidence, frozen=True):
    """What one rank ran on. Raises NotCaptured without a trace."""

    values: dict[str, str]
    """what (`GPU`, `PyTorch`, `CUDA runtime`, …) -> value, "" where the file does not say"""

    @classmethod
    def build(cls, facts: Facts) -> Self:
        return cls(_environment(facts.run))


class Environments(JobEvidence, frozen=True):
    """Raises NotCaptured with fewer than two ranks."""

    of_each = (Environment,)

    ranks: tuple[int, ...]
    values: dict[str, tuple[str, ...]]
    """what (`GPU`, `PyTorch`, `CUDA runtime`, …) -> value per rank, "" where a file does not say"""

    @property
    def differing(self) -> list[str]:
        """What at least two ranks say differently."""
        return [what for what, of in self.values.items() if len(set(filter(None, of))) > 1]

    def by_value(self, *kinds: str) -> list[tuple[tuple[str, ...], list[int]]]:
        """What ranks say of these kinds, with the ranks that say so, most ranks first."""
        ranks: dict[tuple[str, ...], list[int]] = {}
        for rank, *values in zip(self.ranks, *(self.values.get(kind, ()) for kind in kinds), strict=True):
            ranks.setdefault(tuple(values), []).append(rank)
        return sorted(ranks.items(), key=lambda each: -len(each[1]))

    def told(self, what: str) -> list[str]:
        """What most ranks have, then what others have and which they are."""
        usual, *others = [(value, ranks) for (value,), ranks in self.by_value(what) if value]
        return [usual[0], *(f"{value} on {ranks_text(ranks)}" for value, ranks in others)]

    def usual(self, what: str) -> str:
        """What most ranks have; "" where no file says."""
        counted = Counter(filter(None, self.values.get(what, ())))
        return counted.most_common(1)[0][0] if counted else ""

    def dockerfile(self) -> str:
        """An image with the versions that most ranks have."""
        return dockerfile(self.usual("PyTorch"), self.usual("CUDA runtime"))

    @classmethod
    def build(cls, ranks: Sequence[RankSummary]) -> Self:
        if len(ranks) < 2:
            raise NotCaptured("fewer than two ranks with a profiler trace", how_to_record_others(ranks))
        by_rank = [summary[Environment].values for summary in ranks]
        kinds = [what for what in by_rank[0] if any(s[what] for s in by_rank)]
        return cls(tuple(summary.rank for summary in ranks), {k: tuple(s[k] for s in by_rank) for k in kinds})


def _environment(run: Run) -> dict[str, str]:
    used = set(run.device[run.gpu].tolist())
    names = {name for device, name in run.device_names.items() if device in used}
    exact = run.torch_version
    return {
        "GPU": ", ".join(sorted(names)),
        "PyTorch": exact.min if exact.min is not None and exact.min == exact.max else "",
        "CUDA runtime": _dotted(run.meta.get("cuda_runtime_version")),
        "HIP runtime": _dotted(run.meta.get("hip_runtime_version"), plain=True),
        "CUDA driver": _dotted(run.meta.get("cuda_driver_version")),
        "NCCL": str(run.meta.get("distributedInfo", {}).get("nccl_version", "")),
    }


def _dotted(number: Any, *, plain: bool = False) -> str:
    """12060 -> 12.6, as CUDA numbers its versions; `plain` numbers stay."""
    try:
        value = int(number)
    except (TypeError, ValueError):
        return ""
    return str(value) if plain else f"{value // 1000}.{value % 1000 // 10}"
