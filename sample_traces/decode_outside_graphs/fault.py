"""A server whose CUDA graphs end at 8 requests: decode steps of 12 requests are launched kernel by kernel."""

import torch
from torch import nn
from torch.nn import functional as F
from torch.profiler import record_function

device = "cuda" if torch.cuda.is_available() else "cpu"
WIDTH, LAYERS, VOCABULARY = (2048, 16, 32_000) if device == "cuda" else (64, 2, 500)
PROMPT, NEW = (512, 128) if device == "cuda" else (16, 12)
REQUESTS = (8, 12, 8, 12)
GRAPHS = (4, 8)  # FAULT


class Block(nn.Module):
    """Attention over a cache of keys and values, and a feed-forward."""

    def __init__(self, batch):
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.register_buffer("cache", torch.zeros(2, batch, PROMPT + NEW, WIDTH))

    def forward(self, x, positions, mask):
        q, k, v = self.qkv(self.norms[0](x)).chunk(3, dim=-1)
        keys, values = self.cache[:, : len(x)]
        keys.index_copy_(1, positions, k)
        values.index_copy_(1, positions, v)
        x = x + self.out(F.scaled_dot_product_attention(q, keys, values, attn_mask=mask))
        return x + self.down(F.gelu(self.up(self.norms[1](x))))


class Model(nn.Module):
    def __init__(self, batch):
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block(batch) for _ in range(LAYERS))

    def forward(self, tokens, positions):
        """The next token of each request."""
        x = self.embedding(tokens)
        mask = torch.arange(PROMPT + NEW, device=device) <= positions[:, None]
        for block in self.blocks:
            x = block(x, positions, mask)
        return (x[:, -1] @ self.embedding.weight.T).argmax(dim=-1, keepdim=True)


def captured(model, batch):
    """A decode step as a CUDA graph: its inputs are copied to where the graph reads them."""
    tokens, position = torch.zeros(batch, 1, dtype=torch.long, device=device), torch.zeros(1, dtype=torch.long, device=device)
    model(tokens, position)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        following = model(tokens, position)

    def decode(new_tokens, new_position):
        tokens.copy_(new_tokens)
        position.copy_(new_position)
        graph.replay()
        return following

    return decode


@torch.inference_mode()
def serve(profiler=None):
    """Answers of batches of requests: a prefill of all prompts, then a decode step for each further token."""
    torch.manual_seed(0)
    model = Model(max(REQUESTS)).to(device)
    graphs = {batch: captured(model, batch) for batch in GRAPHS if device == "cuda"}
    prompt, answers = torch.arange(PROMPT, device=device), []
    for requests in REQUESTS:
        prompts = torch.randint(VOCABULARY, (requests, PROMPT), device=device)
        with record_function(f"step[EXTEND bs={requests} toks={prompts.numel()}]"):
            tokens = model(prompts, prompt)
        decode = graphs.get(requests, model)
        for position in range(PROMPT, PROMPT + NEW):
            with record_function(f"step[DECODE bs={requests}]"):
                tokens = decode(tokens, torch.tensor([position]).to(device, non_blocking=True))
                answers.append(tokens.clone())
            if profiler:
                profiler.step()
    return [batch.flatten().tolist() for batch in answers]


if __name__ == "__main__":
    print(len(serve()))
