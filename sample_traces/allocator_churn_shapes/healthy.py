"""Sequences of random length on a nearly full GPU: segments that grow fit every length."""

import os

os.environ["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"  # before torch is imported

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
FEATURES, LENGTHS = (1024, (1024, 8192)) if device == "cuda" else (64, (16, 64))
STEPS = 20
LIMIT = 3 << 30  # bytes


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(FEATURES, nhead=8, dim_feedforward=4 * FEATURES, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(FEATURES, 10)

    def forward(self, x):
        return self.head(self.layers(x).mean(dim=1))


def batches():
    """One document a step, as long as it happens to be."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(STEPS):
        length = int(torch.randint(*LENGTHS, (), generator=generator))
        x = torch.randn(2, length, FEATURES, device=device)
        yield x, x[:, :, :10].mean(dim=1).argmax(dim=1)


def train(profiler=None):
    torch.manual_seed(0)
    if device == "cuda":  # the rest of the card belongs to others
        torch.cuda.set_per_process_memory_fraction(LIMIT / torch.cuda.get_device_properties(0).total_memory)
    model = Encoder().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    losses = []
    for x, y in batches():
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
