"""A sequence classifier on two ranks. Documents differ in length, and each rank pads its batches to its longest one.

They are sorted by length and dealt out in turn: both ranks have the same lengths in the same step.
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

BATCH = 16
STEPS = 20
WIDTH = 128


def lengths():
    """Of all documents: from 32 to 512 tokens."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(32, 513, (STEPS * BATCH * dist.get_world_size(),), generator=generator).tolist()


def shard(documents):
    """The documents of this rank."""
    rank, world = dist.get_rank(), dist.get_world_size()
    return sorted(documents)[rank::world]


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(1000, WIDTH)
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(4)))
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, tokens):
        return self.head(self.layers(self.embedding(tokens)).mean(dim=1))


def train(profiler=None):
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = f"cuda:{os.environ['LOCAL_RANK']}" if on_gpu else "cpu"
    torch.manual_seed(0)
    model = DistributedDataParallel(Classifier().to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    documents = shard(lengths())
    losses = []
    for step in range(STEPS):
        batch = documents[step * BATCH : (step + 1) * BATCH]
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randint(1000, (BATCH, max(batch)), generator=generator).to(device)
        labels = torch.randint(10, (BATCH,), generator=generator).to(device)
        loss = F.cross_entropy(model(tokens), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if profiler:
            profiler.step()
    dist.destroy_process_group()
    return torch.stack(losses).tolist()


if __name__ == "__main__":
    print(train()[-1])
