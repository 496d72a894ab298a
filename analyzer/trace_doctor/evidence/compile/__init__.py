"""What torch.compile did: graphs, breaks, recompilations."""
