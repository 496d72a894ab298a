"""Model and images lie channels last, as the convolutions want them."""

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH, LAYERS, BATCH, SIZE = (128, 8, 64, 56) if device == "cuda" else (8, 2, 2, 12)
STEPS = 40


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm2d(WIDTH)
        self.conv = nn.Conv2d(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x):
        return x + F.relu(self.conv(self.norm(x)))


def build_model():
    stem, head = (
        nn.Conv2d(3, WIDTH, 3, padding=1),
        [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, 10)],
    )
    return nn.Sequential(stem, *(Block() for _ in range(LAYERS)), *head).to(device)


def train(profiler=None):
    torch.manual_seed(0)
    model = build_model()
    model.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    losses = []
    for _ in range(STEPS):
        images = torch.randn(BATCH, 3, SIZE, SIZE, device=device)
        images = images.to(memory_format=torch.channels_last)
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.cross_entropy(model(images), torch.arange(BATCH, device=device) % 10)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if profiler:
            profiler.step()
    return torch.stack(losses).tolist()


if __name__ == "__main__":
    print(train()[-1])
