"""Short epochs over a DataLoader whose worker processes end with each epoch, and are started again for the next."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

device = "cuda" if torch.cuda.is_available() else "cpu"
BATCH, BATCHES, EPOCHS = (256, 4, 8) if device == "cuda" else (8, 4, 3)


class Shards(Dataset):
    """Each worker process opens the index of the shards before it can read the first sample."""

    def __init__(self):
        self.index = None

    def __len__(self):
        return BATCH * BATCHES

    def __getitem__(self, i):
        if self.index is None:
            time.sleep(0.05)
            self.index = torch.randperm(1000)
        return torch.full((64,), i / len(self)), i % 10


def train(profiler=None):
    torch.manual_seed(0)
    loader = DataLoader(Shards(), batch_size=BATCH, num_workers=2, pin_memory=device == "cuda")  # FAULT
    model = nn.Sequential(nn.Linear(64, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loss_function = nn.CrossEntropyLoss()
    losses = []
    for _ in range(EPOCHS):
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            loss = loss_function(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.detach())
            if profiler:
                profiler.step()
    return torch.stack(losses).tolist()


if __name__ == "__main__":
    print(train()[-1])
