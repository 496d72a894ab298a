"""The distances between the rows of a batch are computed row by row, in a Python loop."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
FEATURES, BATCH, STEPS = (1024, 256, 40) if device == "cuda" else (256, 64, 16)


def spread(x):
    """Mean distance of each row to the mean of all."""
    center = x.mean(dim=0)
    distances = []
    for i in range(len(x)):  # FAULT
        distances.append((x[i] - center).square().sum())
    return torch.stack(distances).mean()


def train(profiler=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.ReLU(), nn.Linear(FEATURES, FEATURES)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(BATCH, FEATURES, device=device)
        loss = spread(model(x))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if profiler:
            profiler.step()
    return torch.stack(losses).tolist()


if __name__ == "__main__":
    print(train()[-1])
