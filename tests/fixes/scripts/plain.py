import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Attention(nn.Module):
    def __init__(self, size, heads):
        super().__init__()
        self.qkv = nn.Linear(size, 3 * size)
        self.heads = heads

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        scores = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        return (F.softmax(scores, dim=-1) @ v).transpose(1, 2).flatten(2)


class Net(nn.Module):
    def __init__(self, size=32, depth=2):
        super().__init__()
        self.blocks = nn.ModuleList([Attention(size, 4) for _ in range(depth)])
        self.head = nn.Linear(size, 10)

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.head(x.mean(1))


def train(model, device, loader, optimizer, epoch):
    model.train()
    total = 0.0
    for step, (x, y) in enumerate(loader):
        x, y = x.to(device), y.to(device)
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss.item()
        print(f"epoch {epoch} step {step} loss {loss.item():.3f}")
        torch.cuda.empty_cache()
    return total / len(loader)


def evaluate(model, device, loader):
    model.eval()
    right = 0
    with torch.no_grad():
        for x, y in loader:
            right += (model(x.to(device)).argmax(1) == y.to(device)).sum().item()
    return right


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=32)
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    data = TensorDataset(torch.randn(256, 8, 32), torch.randint(10, (256,)))
    loader = DataLoader(data, batch_size=args.batch_size, shuffle=True, num_workers=args.workers)
    held_out = DataLoader(data, batch_size=args.batch_size)
    model = Net().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for epoch in range(2):
        train(model, device, loader, optimizer, epoch)
        evaluate(model, device, held_out)


if __name__ == "__main__":
    main()
