import deepspeed
import torch
from torch.utils.data import DataLoader, TensorDataset

config = {"train_micro_batch_size_per_gpu": 8, "zero_optimization": {"stage": 1}}
model = torch.nn.Linear(8, 8)
data = TensorDataset(torch.randn(64, 8))
engine, optimizer, _, _ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
loader = DataLoader(data, batch_size=8, shuffle=True)
for (x,) in loader:
    loss = engine(x.to(engine.device)).square().mean()
    engine.backward(loss)
    engine.step()
    print(loss.item())
