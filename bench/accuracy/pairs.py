"""Records scripts with a planted fault beside their healthy twins: `python bench/accuracy/pairs.py [NAME…]` writes pairs.json.

Both twins run in one process, by turns, so that what else the machine does hits both. In each round a twin takes plain steps and
then steps under the profiler; the faulty capture is analysed as anybody would, and what its finding promises is written down
beside both times. A pair that is there is never recorded again: a name is measured once.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from trace_doctor import analyze

HERE = Path(__file__).parent
PAIRS = HERE / "pairs.json"
PLANTED = HERE.parent / "planted" / "train.py"
ROUNDS, WARM, PLAIN, PROFILED = 4, 4, 10, 6
Steps = Iterator[None]


def _training(model: nn.Module, x: torch.Tensor, then: Callable[[], object] = lambda: None) -> Steps:
    """Endless steps of a regression to zero, with something at the end of each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    while True:
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        then()
        yield


def _layers(width: int = 256, count: int = 6) -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(count)))


class _Samples(Dataset):
    """Each takes a while: on a disk (`work` 0), or of the processor."""

    def __init__(self, wait: float, work: int) -> None:
        self.wait, self.work = wait, work

    def __len__(self) -> int:
        return 1 << 20

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(self.wait)
        label = sum(i * i for i in range(self.work)) % 7
        return torch.arange(256, dtype=torch.float) / 256 + label


def _loading(faulty: bool, wait: float, work: int) -> Steps:
    workers = {} if faulty else {"num_workers": 2}
    model = _layers()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for x in DataLoader(_Samples(wait, work), batch_size=16, **workers):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        yield


def loader_of_a_slow_disk(faulty: bool) -> Steps:
    """TD101"""
    return _loading(faulty, 0.001, 0)


def loader_that_computes(faulty: bool) -> Steps:
    """TD101"""
    return _loading(faulty, 0.0, 12_000)


def report_after_each_step(faulty: bool) -> Steps:
    """TD203"""
    numbers = [random.random() for _ in range(20_000)]

    def write_report() -> None:
        json.dumps({"numbers": numbers})

    return _training(_layers(), torch.randn(64, 256), write_report if faulty else lambda: None)


def collect_after_each_step(faulty: bool) -> Steps:
    """TD203"""
    kept = [{"n": n} for n in range(100_000)]

    def tidy() -> None:
        gc.collect()

    return _training(_layers(), torch.randn(64, 256), tidy if faulty else lambda: kept and None)


def checkpoint_after_each_step(faulty: bool) -> Steps:
    """TD203"""
    model = _layers(512, 8)

    def save() -> None:
        torch.save(model.state_dict(), io.BytesIO())

    return _training(model, torch.randn(64, 512), save if faulty else lambda: None)


def score_in_python(faulty: bool) -> Steps:
    """TD203"""
    labels = [random.randrange(10) for _ in range(60_000)]

    def score() -> None:
        confusion = [[0] * 10 for _ in range(10)]
        for wanted, got in zip(labels, reversed(labels), strict=True):
            confusion[wanted][got] += 1

    return _training(_layers(), torch.randn(64, 256), score if faulty else lambda: None)


class _BrokenOnce(nn.Module):
    def __init__(self, width: int, faulty: bool) -> None:
        super().__init__()
        self.first, self.second, self.faulty = _layers(width, 3), _layers(width, 3), faulty

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        if self.faulty:
            print("mean", x.mean())
        return self.second(x)


class _BrokenTwice(nn.Module):
    def __init__(self, width: int, faulty: bool) -> None:
        super().__init__()
        self.one, self.two, self.three = _layers(width, 2), _layers(width, 2), _layers(width, 2)
        self.faulty = faulty

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.one(x)
        if self.faulty:
            print("mean", x.mean())
        x = self.two(x)
        if self.faulty:
            print("most", x.amax())
        return self.three(x)


class _Scaled(nn.Module):
    def __init__(self, width: int, faulty: bool) -> None:
        super().__init__()
        self.first, self.second, self.faulty = _layers(width, 2), _layers(width, 2), faulty

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        most = x.abs().amax()
        return self.second(x / (most.item() if self.faulty else most.detach()))


def print_in_forward(faulty: bool) -> Steps:
    """TD501"""
    return _training(torch.compile(_BrokenOnce(64, faulty), backend="aot_eager"), torch.randn(32, 64))


def print_in_wide_forward(faulty: bool) -> Steps:
    """TD501"""
    return _training(torch.compile(_BrokenOnce(512, faulty), backend="aot_eager"), torch.randn(256, 512))


def two_prints_in_forward(faulty: bool) -> Steps:
    """TD501"""
    return _training(torch.compile(_BrokenTwice(128, faulty), backend="aot_eager"), torch.randn(64, 128))


def item_in_compiled_forward(faulty: bool) -> Steps:
    """TD501"""
    return _training(torch.compile(_Scaled(128, faulty)), torch.randn(64, 128))


class _Rows(nn.Module):
    def __init__(self, faulty: bool) -> None:
        super().__init__()
        self.layers, self.faulty = _layers(256, 3), faulty

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers(x)
        if not self.faulty:
            return x / x.norm(dim=1, keepdim=True)
        rows = []
        for i in range(len(x)):
            rows.append(x[i] / x[i].norm())
        return torch.stack(rows)


class _Windows(nn.Module):
    def __init__(self, faulty: bool) -> None:
        super().__init__()
        self.layers, self.faulty = _layers(256, 3), faulty

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers(x)
        if not self.faulty:
            return x.unfold(1, 16, 4).mean(dim=2)
        means = []
        for i in range(0, 241, 4):
            means.append(x[:, i : i + 16].mean(dim=1))
        return torch.stack(means, dim=1)


def row_by_row(faulty: bool) -> Steps:
    """TD204"""
    return _training(_Rows(faulty), torch.randn(64, 256))


def window_by_window(faulty: bool) -> Steps:
    """TD204"""
    return _training(_Windows(faulty), torch.randn(128, 256))


def _updating(faulty: bool, width: int, count: int, kind: type[torch.optim.Optimizer]) -> Steps:
    model = _layers(width, count)
    optimizer = kind(model.parameters(), lr=1e-4, **({"foreach": False} if faulty else {"fused": True}))
    x = torch.randn(16, width)
    while True:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        yield


def adamw_of_small_tensors(faulty: bool) -> Steps:
    """TD304"""
    return _updating(faulty, 32, 40, torch.optim.AdamW)


def adam_of_large_tensors(faulty: bool) -> Steps:
    """TD304"""
    return _updating(faulty, 512, 32, torch.optim.Adam)


class _Attention(nn.Module):
    def __init__(self, faulty: bool) -> None:
        super().__init__()
        self.qkv, self.out, self.faulty = nn.Linear(256, 768), nn.Linear(256, 256), faulty

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(2, (4, 64)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=2))
        if self.faulty:
            scores = torch.matmul(q, k.transpose(2, 3)) / 8.0
            y = torch.matmul(torch.softmax(scores, dim=-1), v)
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).flatten(2))


def attention_by_hand(faulty: bool) -> Steps:
    """TD303"""
    return _training(_Attention(faulty), torch.randn(4, 384, 256))


class _Experts(nn.Module):
    def __init__(self, faulty: bool) -> None:
        super().__init__()
        self.weight, self.faulty = nn.Parameter(torch.randn(48, 64, 64) / 8), faulty

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.faulty:
            return torch.bmm(x, self.weight)
        return torch.stack([part @ weight for part, weight in zip(x, self.weight, strict=True)])


def experts_one_by_one(faulty: bool) -> Steps:
    """TD309"""
    return _training(_Experts(faulty), torch.randn(48, 16, 64))


def shapes_that_change(faulty: bool) -> Steps:
    """TD502"""
    model = torch.compile(_layers(64, 2), backend="aot_eager", dynamic=not faulty)
    torch._dynamo.config.automatic_dynamic_shapes = not faulty
    torch._dynamo.config.recompile_limit = 10_000
    step = 0
    while True:
        step += 1
        x = torch.randn(16 + step, 64)
        model(x).square().mean().backward()
        yield


def _two_ranks(model: nn.Module, rows: int, pause: float) -> Steps:
    parallel = nn.parallel.DistributedDataParallel(model)
    return _training(parallel, torch.randn(rows, 256), lambda: time.sleep(pause))


def rank_that_pauses(faulty: bool) -> Steps:
    """TD602 2"""
    return _two_ranks(_layers(), 64, 0.02 if faulty and dist.get_rank() else 0.0)


def rank_with_more_rows(faulty: bool) -> Steps:
    """TD602 2"""
    rows = (64, 1024)[dist.get_rank()] if faulty else (64 + 1024) // 2
    return _two_ranks(_layers(), rows, 0.0)


def _planted(mended: str, instead: str, faulty: bool) -> Steps:
    """bench/planted/train.py, with one of its faults mended in the twin; a generator of its own loop."""
    text = PLANTED.read_text(encoding="utf-8")
    if not faulty:
        assert mended in text
        text = text.replace(mended, instead)
    end = "optimizer.zero_grad(set_to_none=False)\n"
    text = text.replace(end, end.rstrip() + "\n        yield\n")
    path = Path(tempfile.mkdtemp()) / f"planted_{faulty}.py"
    path.write_text(text, encoding="utf-8")
    scope: dict[str, object] = {"__name__": path.stem, "__file__": str(path)}
    exec(compile(text, str(path), "exec"), scope)
    sys.modules[path.stem] = type(sys)(path.stem)
    sys.modules[path.stem].__dict__.update(scope)
    return scope["main"]()  # type: ignore[operator]


def planted_loader(faulty: bool) -> Steps:
    """TD101"""
    return _planted("shuffle=True)", "shuffle=True, num_workers=2)", faulty)


def planted_first_print(faulty: bool) -> Steps:
    """TD501 first"""
    line = '        print("rank of the activations", torch.linalg.matrix_rank(hidden.repeat(4, 4)))\n'
    return _planted(line, "", faulty)


def planted_second_print(faulty: bool) -> Steps:
    """TD501 second"""
    line = '        print("condition of the output", torch.linalg.cond(x.repeat(16, 4)))\n'
    return _planted(line, "", faulty)


SCENARIOS: tuple[Callable[[bool], Steps], ...] = (
    loader_of_a_slow_disk,
    loader_that_computes,
    report_after_each_step,
    collect_after_each_step,
    checkpoint_after_each_step,
    score_in_python,
    print_in_forward,
    print_in_wide_forward,
    two_prints_in_forward,
    row_by_row,
    window_by_window,
    adamw_of_small_tensors,
    adam_of_large_tensors,
    attention_by_hand,
    experts_one_by_one,
    shapes_that_change,
    rank_that_pauses,
    rank_with_more_rows,
    planted_loader,
    planted_first_print,
    planted_second_print,
    item_in_compiled_forward,
)


def rounds(
    scenario: Callable[[bool], Steps], folder: Path, rank: int = 0
) -> dict[str, list[dict[str, float]]]:
    """Of each twin and round: the median plain step and the mean step under the profiler, ms; traces go to the folder."""
    twins = {name: scenario(name == "fault") for name in ("fault", "healthy")}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in twins}
    for number in range(ROUNDS):
        for name, steps in twins.items():
            for _ in range(WARM):
                next(steps)
            plain = [_timed(steps) for _ in range(PLAIN)]
            out = folder / name / str(number)
            out.mkdir(parents=True, exist_ok=True)
            with torch.profiler.profile(
                activities=[torch.profiler.ProfilerActivity.CPU],
                schedule=torch.profiler.schedule(wait=0, warmup=1, active=PROFILED),
                on_trace_ready=lambda p, out=out: p.export_chrome_trace(str(out / f"rank{rank}.json")),
                with_stack=True,
            ) as profiler:
                profiled = []
                for _ in range(PROFILED + 1):
                    profiled.append(_timed(steps))
                    profiler.step()
            found[name].append(
                {"plain": statistics.median(plain), "profiled": statistics.fmean(profiled[1:])}
            )
    return found


def _timed(steps: Steps) -> float:
    begin = time.perf_counter()
    next(steps)
    return (time.perf_counter() - begin) * 1e3


def _rank(rank: int, scenario: Callable[[bool], Steps], world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29611")
    dist.init_process_group("gloo", rank=rank, world_size=world)
    found = rounds(scenario, folder, rank)
    (folder / f"times{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def record(scenario: Callable[[bool], Steps]) -> dict[str, object]:
    """The pair: times of each round, and what was promised from the faulty capture of each."""
    code, _, rest = (scenario.__doc__ or "").partition(" ")
    with tempfile.TemporaryDirectory() as scratch, contextlib.redirect_stdout(io.StringIO()):
        folder = Path(scratch)
        if rest.isdecimal():
            torch.multiprocessing.spawn(_rank, (scenario, int(rest), folder), int(rest))
            times = json.loads((folder / "times0.json").read_text())
        else:
            times = rounds(scenario, folder)
        promised = []
        for number in range(ROUNDS):
            result = analyze(*sorted((folder / "fault" / str(number)).iterdir()))
            findings = [f for f in result.findings if f.code == code and f.saving and f.saving.share_of_step]
            if rest in ("first", "second"):
                findings.sort(key=lambda f: f.location.line or 0)
                findings = findings[:1] if rest == "first" else findings[1:2]
            promised.append(
                [
                    {
                        "share": f.saving.share_of_step,
                        "known": f.saving.known,
                        "low": f.saving.low,
                        "high": f.saving.high,
                        "basis": f.saving.basis,
                    }
                    for f in findings
                ]
            )
    return {"code": code, **times, "promised": promised}


def main() -> None:
    torch.set_num_threads(1)
    pairs = json.loads(PAIRS.read_text(encoding="utf-8")) if PAIRS.exists() else {}
    wanted = sys.argv[1:]
    for scenario in SCENARIOS:
        name = scenario.__name__
        if name in pairs or (wanted and name not in wanted):
            continue
        torch.manual_seed(0)
        torch._dynamo.reset()
        torch._dynamo.config.automatic_dynamic_shapes = True
        try:
            pairs[name] = record(scenario)
        except Exception as error:
            print(f"{name}: not recorded: {error!r}", flush=True)
            continue
        PAIRS.write_text(json.dumps(pairs, indent=1) + "\n", encoding="utf-8")
        last = pairs[name]
        print(name, last["promised"], last["fault"], last["healthy"], flush=True)


if __name__ == "__main__":
    main()
