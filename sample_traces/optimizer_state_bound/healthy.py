"""Adafactor keeps a row and a column of numbers for each matrix: the batches fit."""

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
FEATURES, BATCH = (3200, 6400) if device == "cuda" else (64, 32)
LIMIT = 1 << 30  # bytes
STEPS = 12


def build_model():
    layers = []
    for _ in range(6):
        layers += [nn.Linear(FEATURES, FEATURES), nn.ReLU(inplace=True)]
    return nn.Sequential(*layers, nn.Linear(FEATURES, 10)).to(device)


def train(profiler=None):
    if device == "cuda":  # the rest of the card belongs to others
        torch.cuda.set_per_process_memory_fraction(LIMIT / torch.cuda.get_device_properties(0).total_memory)
    torch.manual_seed(0)
    model = build_model()
    optimizer = torch.optim.Adafactor(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(BATCH, FEATURES, device=device)
        loss = F.cross_entropy(model(x), x[:, :10].argmax(dim=1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if profiler:
            profiler.step()
    return torch.stack(losses).tolist()


if __name__ == "__main__":
    print(train()[-1])
