"""An evaluation recorded as one long stretch: nothing in the trace tells where one batch ends and the next begins."""

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

device = "cuda" if torch.cuda.is_available() else "cpu"
FEATURES = 256
BATCHES = 12


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(FEATURES, 4 * FEATURES), nn.GELU(), nn.Linear(4 * FEATURES, FEATURES), nn.GELU()
        )
        self.head = nn.Linear(FEATURES, 10)

    def forward(self, x):
        return self.head(self.layers(x))


@torch.no_grad()
def evaluate(profiler=None):
    torch.manual_seed(0)
    model = Classifier().to(device).eval()
    correct = torch.zeros((), device=device)
    for _ in range(BATCHES):
        x = torch.randn(128, FEATURES, device=device)
        labels = x[:, :10].argmax(dim=1)
        correct += (model(x).argmax(dim=1) == labels).sum()
    return correct.item() / (128 * BATCHES)


def record(trace="trace.json"):
    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, with_stack=True) as profiler:  # FAULT
        evaluate(profiler)
    profiler.export_chrome_trace(trace)


if __name__ == "__main__":
    record()
