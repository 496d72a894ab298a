"""The noise of a denoising model is drawn on the GPU."""

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
BATCH, FEATURES, LAYERS, STEPS = (4096, 1024, 12, 40) if device == "cuda" else (32, 64, 3, 12)


def train(profiler=None):
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.GELU()) for _ in range(LAYERS))).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    clean = torch.rand(BATCH, FEATURES, device=device)
    losses = []
    for _ in range(STEPS):
        noise = torch.randn(BATCH, FEATURES, device=device)
        loss = F.mse_loss(model(clean + noise), noise)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if profiler:
            profiler.step()
    return torch.stack(losses).tolist()


if __name__ == "__main__":
    print(train()[-1])
