"""Training on a GPU, recorded with CPU activities alone: the trace knows the device, but holds no kernel."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import ProfilerActivity, profile, schedule

device = "cuda" if torch.cuda.is_available() else "cpu"
FEATURES = 2048 if device == "cuda" else 128
STEPS = 16


def train(profiler=None):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.GELU(), nn.Linear(FEATURES, 10)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(STEPS):
        x = torch.randn(4096 if device == "cuda" else 64, FEATURES, device=device)
        loss = F.cross_entropy(model(x), x[:, :10].argmax(dim=1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if profiler:
            profiler.step()
    return torch.stack(losses).tolist()


def record(trace="trace.json"):
    activities = [ProfilerActivity.CPU]  # FAULT
    with profile(
        activities=activities,
        schedule=schedule(wait=4, warmup=2, active=6, repeat=1),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(trace),
    ) as profiler:
        train(profiler)


if __name__ == "__main__":
    record()
