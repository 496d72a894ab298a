import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def main(batch_size=16):
    accelerator = Accelerator(gradient_accumulation_steps=2)
    model = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(params=model.parameters(), lr=1e-3)
    data = TensorDataset(torch.randn(256, 32), torch.randint(10, (256,)))
    train_dataloader = DataLoader(data, shuffle=True, batch_size=batch_size)
    eval_dataloader = DataLoader(data, shuffle=False, batch_size=batch_size)
    model, optimizer, train_dataloader, eval_dataloader = accelerator.prepare(
        model, optimizer, train_dataloader, eval_dataloader
    )
    for _ in range(2):
        model.train()
        for step, (x, y) in enumerate(train_dataloader):
            with accelerator.accumulate(model):
                loss = torch.nn.functional.cross_entropy(model(x), y)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            accelerator.print(step, loss.item())
        model.eval()
        for x, y in eval_dataloader:
            with torch.no_grad():
                model(x)


if __name__ == "__main__":
    main()
