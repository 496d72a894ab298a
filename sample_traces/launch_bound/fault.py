"""A deep and narrow model: the GPU is done with each kernel long before the host has launched the next one."""

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
FEATURES, LAYERS, BATCH, STEPS = (128, 64, 64, 60) if device == "cuda" else (32, 1, 16, 6)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(FEATURES)
        self.linear = nn.Linear(FEATURES, FEATURES)

    def forward(self, x):
        return x + F.gelu(self.linear(self.norm(x)))


def train(profiler=None):
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(LAYERS)), nn.Linear(FEATURES, 10)).to(device)  # FAULT
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, foreach=True)
    batches = torch.randn(STEPS, BATCH, FEATURES, device=device)
    losses = []
    for x in batches:
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
