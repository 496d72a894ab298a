"""A small language model with a large vocabulary: the loss of a step needs the logits of all its tokens at once."""

import torch
from torch import nn
from torch.nn import functional as F

device = "cuda" if torch.cuda.is_available() else "cpu"
VOCABULARY, FEATURES, TOKENS = (32_768, 512, 8192) if device == "cuda" else (1024, 64, 128)
STEPS = 16


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, FEATURES)
        self.mix = nn.GRU(FEATURES, FEATURES, batch_first=True)
        self.head = nn.Linear(FEATURES, VOCABULARY, bias=False)

    def forward(self, tokens):
        hidden, _ = self.mix(self.embedding(tokens))
        return self.loss(hidden[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())

    def loss(self, hidden, labels):
        logits = self.head(hidden)
        return F.cross_entropy(logits.float(), labels)  # FAULT


def train(profiler=None):
    torch.manual_seed(0)
    model = LanguageModel().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(STEPS):
        tokens = torch.randint(VOCABULARY, (TOKENS // 64, 64), device=device)
        loss = model(tokens)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
        if profiler:
            profiler.step()
    return torch.stack(losses).tolist()


if __name__ == "__main__":
    print(train()[-1])
