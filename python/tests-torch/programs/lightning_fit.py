"""A classifier of lightning with its own loaders and validation. It prints its losses."""

import lightning
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Circles(Dataset):
    """Pictures with a disc that is small or large, as dictionaries."""

    def __init__(self, length, seed):
        generator = torch.Generator().manual_seed(seed)
        self.radius = torch.randint(4, 14, (length,), generator=generator)
        self.noise = torch.randn(length, 1, 32, 32, generator=generator) * 0.1

    def __len__(self):
        return len(self.radius)

    def __getitem__(self, index):
        y, x = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
        disc = ((y - 16) ** 2 + (x - 16) ** 2 < self.radius[index] ** 2).float()
        return {"image": disc[None] + self.noise[index], "label": int(self.radius[index] > 8), "name": f"{index}.png"}


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(1, 4, 5), nn.ReLU(), nn.MaxPool2d(4), nn.Flatten(), nn.Linear(196, 2))

    def training_step(self, batch, number):
        loss = F.cross_entropy(self.layers(batch["image"]), batch["label"])
        if number % 4 == 0:
            print(f"loss {number} {loss.item():.9g}")
        return loss

    def validation_step(self, batch, number):
        assert len(batch["name"]) == len(batch["label"])
        print(f"loss validation {number} {F.cross_entropy(self.layers(batch['image']), batch['label']).item():.9g}")

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), 1e-2)


def main():
    lightning.seed_everything(1, workers=True)
    torch.set_num_threads(1)
    train = DataLoader(Circles(256, 1), batch_size=16, shuffle=True, num_workers=2, persistent_workers=True)
    validation = DataLoader(Circles(64, 2), batch_size=16, num_workers=2)
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False
    )
    trainer.fit(Classifier(), train, validation)


if __name__ == "__main__":
    main()
