"""One kernel updates all parameters."""

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
FEATURES, LAYERS, BATCH = (1024, 40, 2048) if device == "cuda" else (64, 4, 32)
STEPS = 40


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(FEATURES)
        self.linear = nn.Linear(FEATURES, FEATURES)

    def forward(self, x):
        return x + F.gelu(self.linear(self.norm(x)))


def train(profiler=None):
    torch.manual_seed(0)
    model = nn.Sequential(*(Block() for _ in range(LAYERS)), nn.Linear(FEATURES, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(BATCH, FEATURES, device=device)
        with torch.autocast(device, dtype=torch.bfloat16):
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
