"""torch's example `mnist`, shorter: a small CNN, trained on files of MNIST's format. It prints its losses."""

import argparse
import os

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3, 1)
        self.conv2 = nn.Conv2d(8, 16, 3, 1)
        self.dropout = nn.Dropout(0.25)
        self.fc1 = nn.Linear(2304, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, x):
        x = F.relu(self.conv1(x))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = torch.flatten(self.dropout(x), 1)
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


class MNIST(torch.utils.data.Dataset):
    def __init__(self, root, train):
        name = "train" if train else "t10k"
        with open(os.path.join(root, f"{name}-images-idx3-ubyte"), "rb") as file:
            self.images = torch.from_numpy(np.frombuffer(file.read(), "u1", offset=16).copy().reshape(-1, 28, 28))
        with open(os.path.join(root, f"{name}-labels-idx1-ubyte"), "rb") as file:
            self.labels = torch.from_numpy(np.frombuffer(file.read(), "u1", offset=8).astype("i8"))

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        return (self.images[index].float()[None] / 255 - 0.1307) / 0.3081, int(self.labels[index])


def train(model, loader, optimizer, epoch):
    model.train()
    for number, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if number % 4 == 0:
            print(f"loss {epoch} {number} {loss.item():.9g}")


def test(model, loader):
    model.eval()
    loss, correct = 0.0, 0
    with torch.no_grad():
        for data, target in loader:
            output = model(data)
            loss += F.nll_loss(output, target, reduction="sum").item()
            correct += output.argmax(dim=1).eq(target).sum().item()
    print(f"loss test {loss / len(loader.dataset):.9g} {correct}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    kwargs = {"num_workers": 2, "persistent_workers": True, "pin_memory": torch.cuda.is_available()}
    train_loader = torch.utils.data.DataLoader(MNIST(args.root, True), batch_size=32, shuffle=True, **kwargs)
    test_loader = torch.utils.data.DataLoader(MNIST(args.root, False), batch_size=100, **kwargs)
    model = Net()
    optimizer = optim.Adadelta(model.parameters(), lr=1.0)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.7)
    for epoch in range(1, args.epochs + 1):
        train(model, train_loader, optimizer, epoch)
        test(model, test_loader)
        scheduler.step()


if __name__ == "__main__":
    main()
