"""Images are copied to the GPU from pinned memory, and nobody waits for the copy."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
BATCH, SIZE, WIDTH, STEPS = (128, 224, 64, 40) if device == "cuda" else (4, 16, 8, 12)


def train(profiler=None):
    torch.manual_seed(0)
    images = TensorDataset(torch.rand(BATCH * 2, 3, SIZE, SIZE), torch.arange(BATCH * 2) % 10)
    loader = DataLoader(images, batch_size=BATCH, pin_memory=True)
    model = nn.Sequential(
        nn.Conv2d(3, WIDTH, 7, stride=4), nn.ReLU(), nn.Conv2d(WIDTH, WIDTH, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, 10)
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(STEPS // 2):
        for x, y in loader:
            x = x.to(device, non_blocking=True)
            y = y.to(device, non_blocking=True)
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
            if profiler:
                profiler.step()
    return torch.stack(losses).tolist()


if __name__ == "__main__":
    print(train()[-1])
