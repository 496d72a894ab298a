"""An image classifier whose samples are read one after the other in the training process.

Each sample costs a disk access; `time.sleep` stands for its latency, so that the script shows the same on any machine.
"""

import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH = 2048 if device == "cuda" else 48  # a step takes about as long on either device
BATCH = 32
STEPS = 20


class Images(Dataset):
    """Images on a disk that needs 3 ms for each of them."""

    def __len__(self):
        return BATCH * STEPS

    def __getitem__(self, index):
        time.sleep(0.003)
        generator = torch.Generator().manual_seed(index)
        image = torch.randn(3, 32, 32, generator=generator)
        return image, index % 10


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [nn.Conv2d(3, WIDTH, 3, stride=2, padding=1), nn.ReLU()]
        for _ in range(4):
            layers += [nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x):
        return self.head(self.features(x).mean(dim=(2, 3)))


def train(profiler=None):
    torch.manual_seed(0)
    loader = DataLoader(Images(), batch_size=BATCH, shuffle=True)  # FAULT
    model = Classifier().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for images, labels in loader:
        images, labels = images.to(device), labels.to(device)
        loss = F.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if profiler:
            profiler.step()
    return torch.stack(losses).tolist()


if __name__ == "__main__":
    print(train()[-1])
