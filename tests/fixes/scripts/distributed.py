import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

dist.init_process_group("nccl")
rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
kwargs = {"batch_size": 16, "num_workers": 0}
data = TensorDataset(torch.randn(256, 32), torch.randint(10, (256,)))
sampler = DistributedSampler(data)
loader = DataLoader(data, sampler=sampler, **kwargs)
model = DDP(torch.nn.Linear(32, 10).to(rank), device_ids=[rank])
model = torch.compile(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
criterion = torch.nn.CrossEntropyLoss()
scaler = torch.amp.GradScaler("cuda")
losses = []
for epoch in range(2):
    sampler.set_epoch(epoch)
    for i, (x, y) in enumerate(loader):
        with torch.autocast("cuda", dtype=torch.float16):
            loss = criterion(model(x.cuda(rank)), y.cuda(rank)) / 4
        scaler.scale(loss).backward()
        losses.append(loss)
        if (i + 1) % 4 == 0:
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
