"""Runs scripts on the CPU and says what they compute: one JSON object a line in, one out (behave.py asks).

Imports torch once and forks for each run, which has seeds, made-up data, no network, little time, and stand-ins for packages that
are not installed. Stops after so many `backward()`. Of each rank come the loss of each `backward()` and, after each step of an
optimizer, the sum of its weights.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import random
import resource
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
import types
from pathlib import Path
from typing import Any

import numpy
import torch
import torch._dynamo
import torch.distributed
import torch.multiprocessing
from missing_packages import Finder
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.overrides import TorchFunctionMode

IMAGES = 192
SECONDS = 120


class Done(BaseException):
    """After so many steps; a script's `except Exception` does not catch it."""


# ---------------------------------------------------------------------- made-up data


class Images(torch.utils.data.Dataset):
    """Images of noise and their classes, as large as a Resize or crop of the transform says."""

    def __init__(self, channels: int, side: int, classes: int, transform: Any) -> None:
        for step in getattr(transform, "transforms", [transform]):
            side = getattr(step, "side", None) or side
        made = torch.Generator().manual_seed(1)
        own = callable(transform) and not isinstance(transform, Transform)
        self.transform = transform if own else lambda image: image
        self.images = torch.rand(IMAGES, channels, side, side, generator=made)
        self.targets = torch.randint(classes, (IMAGES,), generator=made)
        self.data = (self.images.squeeze(1) * 255).to(torch.uint8)
        self.train_data = self.test_data = self.data
        self.train_labels = self.test_labels = self.targets
        self.classes = [str(c) for c in range(classes)]

    def __len__(self) -> int:
        return IMAGES

    def __getitem__(self, at: int) -> tuple[Any, int]:
        return self.transform(self.images[at]), int(self.targets[at])


def data_set(channels: int, side: int, classes: int) -> Any:
    class Made(Images):
        def __init__(self, *given: Any, transform: Any = None, **named: Any) -> None:
            transform = transform or next((g for g in given if callable(g)), None)
            super().__init__(channels, side, classes, transform)

    return Made


class Transform:
    def __init__(self, *given: Any, **named: Any) -> None:
        self.transforms = list(given[0]) if given and isinstance(given[0], list | tuple) else []

    def __call__(self, x: Any) -> Any:
        return x


class Resize(Transform):
    def __init__(self, size: Any = None, *given: Any, **named: Any) -> None:
        super().__init__()
        self.side = size[0] if isinstance(size, list | tuple) else size


def network(*given: Any, num_classes: int = 10, **named: Any) -> torch.nn.Module:
    """What stands for the models of torchvision."""
    layers = torch.nn.Sequential()
    layers.add_module("conv1", torch.nn.Conv2d(3, 16, 3, 2, 1))
    layers.add_module("bn1", torch.nn.BatchNorm2d(16))
    layers.add_module("relu", torch.nn.ReLU())
    layers.add_module("layer1", torch.nn.Conv2d(16, 32, 3, 2, 1))
    layers.add_module("avgpool", torch.nn.AdaptiveAvgPool2d(1))
    layers.add_module("flatten", torch.nn.Flatten())
    layers.add_module("fc", torch.nn.Linear(32, num_classes))
    return layers


class CartPole:
    """The interface of gymnasium over states of noise."""

    def __init__(self) -> None:
        self._noise, self._left = numpy.random.default_rng(1), 0
        self.action_space = types.SimpleNamespace(
            n=2, shape=(), sample=lambda: int(self._noise.integers(2)), seed=lambda s: None
        )
        self.observation_space = types.SimpleNamespace(shape=(4,))
        self.spec = types.SimpleNamespace(reward_threshold=1e9)
        self.unwrapped = self

    def _state(self) -> Any:
        return self._noise.standard_normal(4).astype("float32")

    def reset(self, **named: Any) -> Any:
        self._left = 20
        return self._state(), {}

    def step(self, action: Any) -> Any:
        self._left -= 1
        return self._state(), float(self._noise.random()), self._left == 0, False, {}

    def close(self) -> None:
        pass

    render = close


class DataParallel(torch.nn.Module):
    def __init__(self, module: torch.nn.Module, *given: Any, **named: Any) -> None:
        super().__init__()
        self.module = module

    def forward(self, *given: Any, **named: Any) -> Any:
        return self.module(*given, **named)


class Tqdm:
    def __init__(self, iterable: Any = (), *given: Any, **named: Any) -> None:
        self._iterable = iterable

    def __iter__(self) -> Any:
        return iter(self._iterable)

    def __enter__(self) -> Tqdm:
        return self

    def __exit__(self, *given: Any) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **named: None

    write = staticmethod(lambda *given, **named: None)


def module(name: str, **names: Any) -> types.ModuleType:
    """A module with these names, and every other as a stand-in."""
    made = Finder().create_module(types.SimpleNamespace(name=name))
    vars(made).update(names)
    sys.modules[name] = made
    return made


def stand_in_modules() -> None:
    digits, colours = data_set(1, 28, 10), data_set(3, 32, 10)
    sets = {"MNIST": digits, "FashionMNIST": digits, "CIFAR10": colours, "CIFAR100": data_set(3, 32, 100)}
    sets |= {"ImageFolder": data_set(3, 64, 10), "FakeData": data_set(3, 64, 10), "LSUN": data_set(3, 64, 10)}
    sizes = dict.fromkeys(("Resize", "RandomCrop", "CenterCrop", "RandomResizedCrop", "Scale"), Resize)
    plain = (
        "Compose",
        "ToTensor",
        "Normalize",
        "RandomHorizontalFlip",
        "Lambda",
        "ColorJitter",
        "RandomApply",
    )
    models = dict.fromkeys(("resnet18", "resnet50", "resnet101", "alexnet"), network)
    parts = {
        "datasets": module("torchvision.datasets", **sets),
        "transforms": module("torchvision.transforms", **sizes, **dict.fromkeys(plain, Transform)),
        "models": module("torchvision.models", **models),
        "utils": module("torchvision.utils", save_image=lambda *g, **n: None, make_grid=lambda x, **n: x),
    }
    module("torchvision.datasets.mnist", MNIST=digits)
    module("torchvision", **parts)
    gym = {"make": lambda *given, **named: CartPole()}
    module("gym", **gym)
    module("gymnasium", **gym)
    module("tqdm", tqdm=Tqdm, trange=lambda n, **named: Tqdm(range(n)))
    module("tqdm.auto", tqdm=Tqdm)
    module("torch.utils.tensorboard")
    sys.meta_path.append(Finder())


# ---------------------------------------------------------------------- what CUDA would do


def on_cpu(value: Any) -> Any:
    named = value.type if isinstance(value, torch.device) else value
    return "cpu" if isinstance(named, str) and named.split(":")[0] == "cuda" else value


class OnCPU(TorchFunctionMode):
    """Makes and moves on the CPU what a script wants on a GPU."""

    def __torch_function__(self, func: Any, kinds: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.cuda:
            return args[0]
        if func is torch.Tensor.to:
            args = [args[0], *("cpu" if type(a) is int else a for a in args[1:])]
        return func(*map(on_cpu, args), **{k: on_cpu(v) for k, v in (kwargs or {}).items()})


def emulate_cuda() -> None:
    """autocast is one of the CPU, and refuses what autocast of CUDA refuses."""
    enter = torch.amp.autocast_mode.autocast.__init__

    def autocast(self: Any, device_type: str, dtype: Any = None, *given: Any, **named: Any) -> None:
        enter(self, "cpu", dtype, *given, **named)

    torch.amp.autocast_mode.autocast.__init__ = autocast
    entropy = functional.binary_cross_entropy

    def binary_cross_entropy(*given: Any, **named: Any) -> Any:
        if torch.is_autocast_enabled("cpu"):
            raise RuntimeError("binary_cross_entropy and BCELoss are unsafe to autocast")
        return entropy(*given, **named)

    functional.binary_cross_entropy = binary_cross_entropy
    for owner in (functional, torch, torch.Tensor):
        for name in ("softmax", "log_softmax"):
            setattr(owner, name, in_fp32(getattr(owner, name)))
    torch.cuda.set_device = lambda *given: None
    torch.cuda.manual_seed = torch.cuda.manual_seed_all = lambda seed: None
    begin = torch.distributed.init_process_group
    torch.distributed.init_process_group = lambda *given, **named: begin(
        "gloo", **{k: v for k, v in named.items() if k not in ("backend", "device_id")}
    )
    wrap = torch.nn.parallel.DistributedDataParallel.__init__

    def ddp(self: Any, model: Any, *given: Any, **named: Any) -> None:
        wrap(self, model, **{k: v for k, v in named.items() if k not in ("device_ids", "output_device")})

    torch.nn.parallel.DistributedDataParallel.__init__ = ddp
    torch.nn.SyncBatchNorm.convert_sync_batchnorm = lambda module, *given: module
    compiled = torch.compile

    def compile_(model: Any = None, **named: Any) -> Any:
        kept = {k: v for k, v in named.items() if k not in ("mode", "backend", "options")}
        return compiled(model, backend="eager", **kept)

    torch.compile = compile_
    scale = torch.amp.GradScaler.scale

    def scaled(self: Any, outputs: Any) -> Any:
        made = scale(self, outputs)
        made.unscaled = outputs
        return made

    torch.amp.GradScaler.scale = scaled
    again = torch.utils.data.DataLoader.__iter__

    def draw_seed_too(self: Any) -> Any:
        if self.persistent_workers and self._iterator is not None:
            torch.empty((), dtype=torch.int64).random_(generator=self.generator)
        return again(self)

    torch.utils.data.DataLoader.__iter__ = (
        draw_seed_too  # else epochs are shuffled otherwise, which is no fault
    )
    torch.multiprocessing.spawn = lambda *given, **named: torch.multiprocessing.start_processes(
        *given, **named, start_method="fork"
    )


def in_fp32(function: Any) -> Any:
    """What autocast of CUDA computes in fp32, and that of the CPU does not."""

    def called(x: torch.Tensor, *given: Any, **named: Any) -> Any:
        half = torch.is_autocast_enabled("cpu") and x.dtype in (torch.float16, torch.bfloat16)
        return function(x.float() if half else x, *given, **named)

    return called


def pretend_cuda(devices: int) -> None:
    """There are GPUs, and all that is made on or moved to them stays on the CPU."""
    move = torch.nn.Module.to
    torch.nn.Module.to = lambda self, *given, **named: move(
        self,
        *("cpu" if type(g) is int else on_cpu(g) for g in given),
        **{k: on_cpu(v) for k, v in named.items()},
    )
    torch.nn.DataParallel = torch.nn.parallel.DataParallel = DataParallel
    torch.Tensor.pin_memory = lambda self, *given: self
    for module_ in (torch.cuda, torch.accelerator):
        module_.is_available = lambda: True
        module_.device_count = lambda: devices
    torch.accelerator.current_accelerator = lambda *given, **named: torch.device("cuda")
    torch.accelerator.current_device_index = lambda: 0
    torch.accelerator.set_device_index = lambda *given: None
    torch.cuda.synchronize = torch.cuda.empty_cache = lambda *given: None
    OnCPU().__enter__()


# ---------------------------------------------------------------------- a run


def watch(folder: Path, limit: int) -> None:
    """Writes each loss and sum of weights to a file of the rank."""
    backward, count = torch.Tensor.backward, 0

    def say(kind: str, value: float) -> None:
        with Path(folder, os.environ.get("RANK") or str(_rank())).open("a") as file:
            print(kind, value.hex(), file=file)

    def recording(self: torch.Tensor, *given: Any, **named: Any) -> None:
        nonlocal count
        say("loss", float(getattr(self, "unscaled", self).detach().double().sum()))
        if (count := count + 1) > limit:
            if multiprocessing.parent_process() is not None:  # one that the script spawned
                os._exit(0)
            raise Done
        backward(self, *given, **named)

    def stepped(optimizer: Any, *given: Any) -> None:
        weights = [p.detach() for g in optimizer.param_groups for p in g["params"]]
        say("weights", float(sum(getattr(w, "_local_tensor", w).double().abs().sum() for w in weights)))

    torch.Tensor.backward = recording
    register_optimizer_step_post_hook(stepped)


def _rank() -> int:
    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_rank() if there else 0


def run(asked: dict[str, Any], folder: Path) -> str:
    """How a script ends."""
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 26, 1 << 26))
    signal.alarm(SECONDS)
    script = Path(asked["script"])
    os.chdir(script.parent)
    sys.path[:0] = [str(script.parent), asked["root"]]
    sys.argv[:] = [str(script), *asked["arguments"]]
    random.seed(0), numpy.random.seed(0), torch.manual_seed(0)
    watch(folder, asked["steps"])
    if asked["cuda"]:
        pretend_cuda(asked["ranks"])
    try:
        runpy.run_path(str(script), run_name="__main__")
    except Done:
        return "stopped"
    except SystemExit as error:
        return "ended" if not error.code else f"exit {error.code}"
    except BaseException as error:
        where = [f.line for f in traceback.extract_tb(error.__traceback__) if asked["root"] in f.filename]
        return f"{type(error).__name__}: {str(error)[:300]} {str(error)[300:][-500:]} at {where[-1:]}"
    return "ended"


def forked(asked: dict[str, Any], rank: int, port: int, folder: Path) -> int:
    if child := os.fork():
        return child
    if asked["processes"] > 1:
        os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(asked["ranks"])}
        os.environ |= {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "LOCAL_WORLD_SIZE": str(asked["ranks"]),
        }
    os.setpgid(0, 0)
    out = os.open(folder / f"out{rank}", os.O_WRONLY | os.O_CREAT)
    os.dup2(out, 1)
    os.dup2(out, 2)
    try:
        end = run(asked, folder)
        Path(folder, f"end{rank}").write_text(end)
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def answer(asked: dict[str, Any]) -> dict[str, Any]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        children = [forked(asked, rank, port, folder) for rank in range(asked["processes"])]
        codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child, signal.SIGKILL)
        said = {p.name: p.read_text("utf-8", "replace") for p in sorted(folder.iterdir())}
    ends = [said.get(f"end{r}", f"killed by {-c}") for r, c in enumerate(codes)]
    numbers = [said[r] for r in said if r.isdigit()]
    return {"ends": ends, "numbers": numbers, "printed": said.get("out0", "")[-20000:]}


def main() -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=False)
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)  # it has no LSTM in half precision on every CPU
    stand_in_modules()
    emulate_cuda()
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
