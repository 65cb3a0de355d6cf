"""torch's example `mnist_hogwild`, shorter: processes train one shared model without locks. It prints the losses before and after."""

import argparse

import torch
import torch.multiprocessing as mp
import torch.nn.functional as F
from torch import nn, optim
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(64, 32)
        self.norm = nn.BatchNorm1d(32)
        self.fc2 = nn.Linear(32, 4)

    def forward(self, x):
        return F.log_softmax(self.fc2(F.relu(self.norm(self.fc1(x)))), dim=1)


def train(rank, args, model, dataset, losses):
    torch.manual_seed(args.seed + rank)
    torch.set_num_threads(1)
    loader = DataLoader(dataset, batch_size=32, shuffle=True, num_workers=1)
    optimizer = optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
    for _ in range(args.epochs):
        for data, target in loader:
            optimizer.zero_grad()
            loss = F.nll_loss(model(data), target)
            loss.backward()
            optimizer.step()
        losses.put((rank, loss.item()))


def test(model, dataset):
    model.eval()
    with torch.no_grad():
        data, target = dataset.tensors
        print(f"loss {F.nll_loss(model(data), target).item():.9g}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)
    mp.set_start_method("spawn", force=True)
    data = torch.randn(512, 64)
    dataset = TensorDataset(data, (data[:, :32].sum(1) > 0).long() * 2 + (data[:, 32:].sum(1) > 0).long())
    model = Net()
    model.share_memory()
    test(model, dataset)
    losses = mp.Queue()
    processes = []
    for rank in range(args.processes):
        process = mp.Process(target=train, args=(rank, args, model, dataset, losses))
        process.start()
        processes.append(process)
    got = [losses.get() for _ in range(args.processes * args.epochs)]
    for process in processes:
        process.join()
        assert process.exitcode == 0
    assert all(0 < loss < 10 for _, loss in got)
    test(model, dataset)


if __name__ == "__main__":
    main()
