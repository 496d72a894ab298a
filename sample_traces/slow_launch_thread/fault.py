"""After every step the training loop writes a long report to a file before it goes on."""

import json
import tempfile

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
FEATURES, BATCH, STEPS = (2048, 4096, 40) if device == "cuda" else (512, 256, 16)


def write_report(file, step, sample):
    file.seek(0)
    file.write(json.dumps({"step": step, "sample": sample}))
    file.flush()


def train(profiler=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.ReLU(), nn.Linear(FEATURES, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    sample = torch.rand(60_000).tolist()
    with tempfile.TemporaryFile("w") as file:
        for step in range(STEPS):
            x = torch.randn(BATCH, FEATURES, device=device)
            loss = F.cross_entropy(model(x), x[:, :10].argmax(dim=1))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
            write_report(file, step, sample)  # FAULT
            if profiler:
                profiler.step()
    return torch.stack(losses).tolist()


if __name__ == "__main__":
    print(train()[-1])
