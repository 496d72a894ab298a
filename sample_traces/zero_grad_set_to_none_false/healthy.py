"""The gradients are freed as soon as the optimizer has used them."""

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
FEATURES, BATCH = (2048, 8192) if device == "cuda" else (64, 32)
STEPS = 16


def build_model():
    layers = []
    for _ in range(6):
        layers += [nn.Linear(FEATURES, FEATURES), nn.GELU()]
    return nn.Sequential(*layers, nn.Linear(FEATURES, 10)).to(device)


def train(profiler=None):
    torch.manual_seed(0)
    model = build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
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
