"""A classifier with three planted faults and a habit that costs next to nothing, for `trace-doctor treat`.

The faults: batches are loaded in the training process, and two prints cut the compiled model, each with work of its own. The
habit: gradients are filled with zeros.
"""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH, FEATURES = 16, 64


class Samples(Dataset):
    """From a slow disk."""

    def __len__(self):
        return BATCH * 600

    def __getitem__(self, index):
        time.sleep(0.001)
        generator = torch.Generator().manual_seed(index)
        return torch.randn(FEATURES, generator=generator), index % 10


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(FEATURES)
        self.up = nn.Linear(FEATURES, 4 * FEATURES)
        self.down = nn.Linear(4 * FEATURES, FEATURES)
        self.head = nn.Linear(FEATURES, 10)

    def forward(self, x):
        hidden = nn.functional.gelu(self.up(self.norm(x)))
        print("rank of the activations", torch.linalg.matrix_rank(hidden.repeat(4, 4)))
        x = x + self.down(hidden)
        print("condition of the output", torch.linalg.cond(x.repeat(16, 4)))
        return self.head(x)


def main():
    torch.manual_seed(0)
    loader = DataLoader(Samples(), batch_size=BATCH, shuffle=True)
    model = Classifier()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    compiled = torch.compile(model, backend="eager")
    for x, y in loader:
        loss = nn.functional.cross_entropy(compiled(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)


if __name__ == "__main__":
    main()
