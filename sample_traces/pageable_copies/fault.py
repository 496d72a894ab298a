"""Images are copied to the GPU from memory that is not pinned: the copy is slow, and the host waits for it."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

device = "cuda" if torch.cuda.is_available() else "cpu"
BATCH, SIZE, WIDTH, STEPS = (128, 224, 64, 40) if device == "cuda" else (4, 16, 8, 12)


def train(profiler=None):
    torch.manual_seed(0)
    images = TensorDataset(torch.rand(BATCH * 2, 3, SIZE, SIZE), torch.arange(BATCH * 2) % 10)
    loader = DataLoader(images, batch_size=BATCH)
    model = nn.Sequential(
        nn.Conv2d(3, WIDTH, 7, stride=4), nn.ReLU(), nn.Conv2d(WIDTH, WIDTH, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(WIDTH, 10)
    ).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    losses = []
    for _ in range(STEPS // 2):
        for x, y in loader:
            x = x.to(device)  # FAULT
            y = y.to(device)
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
