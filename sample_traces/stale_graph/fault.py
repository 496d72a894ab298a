"""Inference that records gradients: the last output holds its graph until the next one is there."""

import torch
from torch import nn

device = "cuda" if torch.cuda.is_available() else "cpu"
FEATURES, BATCH = (1024, 8192) if device == "cuda" else (64, 32)
STEPS = 12


def build_model():
    layers = []
    for _ in range(4):
        layers += [nn.Linear(FEATURES, FEATURES), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(FEATURES, 10)).to(device)


def train(profiler=None):
    torch.manual_seed(0)
    model = build_model().eval()
    means = []
    for _ in range(STEPS):
        x = torch.randn(BATCH, FEATURES, device=device)
        output = model(x)  # FAULT
        means.append(output.detach().mean())
        if profiler:
            profiler.step()
    return torch.stack(means).tolist()


if __name__ == "__main__":
    print(train()[-1])
