"""A compiled classifier that reads a tensor's value as a Python number in its forward: the graph breaks there."""

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
FEATURES = 64
STEPS = 20


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(FEATURES)
        self.up = nn.Linear(FEATURES, 4 * FEATURES)
        self.down = nn.Linear(4 * FEATURES, FEATURES)
        self.head = nn.Linear(FEATURES, 10)

    def forward(self, x):
        hidden = F.gelu(self.up(self.norm(x)))
        scale = hidden.abs().amax().item()  # FAULT
        x = x + self.down(hidden / scale)
        return self.head(x)


def batches():
    """A learnable problem: the label is the largest of the first ten features."""
    for _ in range(STEPS):
        x = torch.randn(32, FEATURES, device=device)
        yield x, x[:, :10].argmax(dim=1)


def train(profiler=None):
    torch.manual_seed(0)
    model = Classifier().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    compiled = torch.compile(model)
    losses = []
    for x, y in batches():
        loss = F.cross_entropy(compiled(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if profiler:
            profiler.step()
    return torch.stack(losses).tolist()


if __name__ == "__main__":
    print(train()[-1])
