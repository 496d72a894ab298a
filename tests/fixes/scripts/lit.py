import lightning as L
import torch
from torch.utils.data import DataLoader, TensorDataset


class Data(L.LightningDataModule):
    def train_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=8, shuffle=True)

    def val_dataloader(self):
        return DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=8)


class Module(L.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(8, 8)

    def training_step(self, batch, index):
        loss = self.net(batch[0]).square().mean()
        self.log("loss", loss.item())
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=1e-3)


if __name__ == "__main__":
    trainer = L.Trainer(max_epochs=1)
    trainer.fit(Module(), datamodule=Data())
