"""Two batched products stand for all experts."""

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
FEATURES, HIDDEN, EXPERTS, CAPACITY, LAYERS = (
    (1024, 4096, 16, 64, 6) if device == "cuda" else (32, 64, 4, 8, 2)
)
STEPS = 40


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.inward = nn.Parameter(torch.randn(EXPERTS, FEATURES, HIDDEN) * 0.02)
        self.outward = nn.Parameter(torch.randn(EXPERTS, HIDDEN, FEATURES) * 0.02)

    def forward(self, x):
        return x + torch.bmm(F.gelu(torch.bmm(x, self.inward)), self.outward)


def train(profiler=None):
    torch.manual_seed(0)
    model = nn.Sequential(*(Experts() for _ in range(LAYERS)), nn.Linear(FEATURES, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(EXPERTS, CAPACITY, FEATURES, device=device)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(x).flatten(0, 1), x[..., :10].argmax(dim=-1).flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if profiler:
            profiler.step()
    return torch.stack(losses).tolist()


if __name__ == "__main__":
    print(train()[-1])
