"""Documents from the shortest to the longest: no cached segment fits the next step, and all of them are kept."""

import torch  # FAULT
from torch import nn
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
FEATURES, LENGTHS = (1024, (1024, 8192)) if device == "cuda" else (64, (16, 64))
STEPS = 20


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerEncoderLayer(FEATURES, nhead=8, dim_feedforward=4 * FEATURES, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(FEATURES, 10)

    def forward(self, x):
        return self.head(self.layers(x).mean(dim=1))


def batches():
    """One document a step, each longer than the one before."""
    generator = torch.Generator().manual_seed(0)
    for length in torch.randint(*LENGTHS, (STEPS,), generator=generator).sort().values.tolist():
        x = torch.randn(2, length, FEATURES, device=device)
        yield x, x[:, :, :10].mean(dim=1).argmax(dim=1)


def train(profiler=None):
    torch.manual_seed(0)
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
