"""DataLoader, under torch's own two strategies and under `ndshm.torch.install`. The trainer keeps every batch, and looks at all at the end."""

from __future__ import annotations

import gc
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.utils.data
import ndshm
from travelling import LIMIT, Child, Travel, cdata, finish, keep, kept

SIZE = 64
TIMEOUT = 40


class Pair(NamedTuple):
    x: torch.Tensor
    label: int


def sample(index: int) -> torch.Tensor:
    return torch.full((100,), float(index))


class Samples(torch.utils.data.Dataset[Any]):
    """Samples of a form: a tensor, a dictionary with other things, tuples, or a sample that fails."""

    def __init__(self, form: str) -> None:
        self.form = form

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> Any:
        x = sample(index)
        if self.form == "dictionary":
            return {"x": x, "label": index, "nested": {"text": str(index), "list": [x[:3], -x]}}
        if self.form == "tuple":
            return x, index
        if self.form == "named_tuple":
            return Pair(x, index)
        if self.form == "raises" and index == 13:
            raise ValueError("sample 13 is broken")
        if self.form == "dies" and index == 13:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.form == "slow_start" and index < 4:
            time.sleep(0.5)
        return x


class Stream(torch.utils.data.IterableDataset[Any]):
    """Each worker has its part of the samples."""

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        assert worker is not None
        for index in range(worker.id, SIZE, worker.num_workers):
            yield sample(index)


class Bag:
    """A batch of a class of its own."""

    def __init__(self, samples: list[torch.Tensor]) -> None:
        self.samples = samples
        self.x = torch.stack(samples)
        self.sums = self.x.sum(1)


def shared_collate(samples: list[Any]) -> Any:
    """Collate into shared memory, as torch does in a worker."""
    batch = torch.utils.data.default_collate(samples)
    assert batch.is_shared()
    return batch


def loader(travel: Travel, data: Any, method: str = "fork", **options: Any) -> Any:
    options = {"batch_size": 4, "num_workers": 2, "timeout": TIMEOUT, **options}
    return torch.utils.data.DataLoader(data, worker_init_fn=travel.join, multiprocessing_context=method, **options)


def indices(batches: list[torch.Tensor]) -> list[int]:
    """Check every element, and return the indices of the samples."""
    for batch in batches:
        assert batch.shape == (4, 100) and (batch == batch[:, :1]).all()
    return [int(number) for batch in batches for number in batch[:, 0]]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_batches_that_are_kept_stay_right(travel: Travel, method: str) -> None:
    batches = []
    several = loader(travel, Samples("tensor"), method, persistent_workers=method == "spawn")
    for epoch, batch in ((epoch, batch) for epoch in range(2) for batch in several):
        assert batch.is_shared() and travel.carries(batch)
        batches.append(batch.add_(1000 * epoch))  # in place: no other batch may see it
    assert indices(batches) == [*range(SIZE), *range(1000, 1000 + SIZE)]
    assert len({cdata(batch) for batch in batches}) == len(batches)


def test_dictionaries_arrive(travel: Travel) -> None:
    batches = list(loader(travel, Samples("dictionary")))
    assert indices([batch["x"] for batch in batches]) == list(range(SIZE))
    for batch in batches:
        labels = batch["label"].tolist()
        assert batch["label"].dtype == torch.int64 and batch["nested"]["text"] == [str(label) for label in labels]
        assert torch.equal(batch["nested"]["list"][0], batch["x"][:, :3]) and torch.equal(batch["nested"]["list"][1], -batch["x"])
        assert all(travel.carries(x) for x in (batch["x"], batch["label"], *batch["nested"]["list"]))


@pytest.mark.parametrize("form", ["tuple", "named_tuple"])
def test_tuples_arrive(travel: Travel, form: str) -> None:
    batches = list(loader(travel, Samples(form)))
    assert {type(batch) for batch in batches} == {list if form == "tuple" else Pair}
    assert indices([batch[0] for batch in batches]) == [int(label) for batch in batches for label in batch[1]] == list(range(SIZE))


@pytest.mark.parametrize("prefetch", [1, 8])
def test_persistent_workers_serve_several_epochs(travel: Travel, prefetch: int) -> None:
    several = loader(travel, Samples("tensor"), persistent_workers=True, prefetch_factor=prefetch)
    batches = [batch for _ in range(4) for batch in several]
    assert indices(batches) == 4 * list(range(SIZE))


def test_iterable_dataset_arrives(travel: Travel) -> None:
    assert sorted(indices(list(loader(travel, Stream())))) == list(range(SIZE))


def test_batches_arrive_out_of_order(travel: Travel) -> None:
    found = indices(list(loader(travel, Samples("slow_start"), in_order=False)))
    assert sorted(found) == list(range(SIZE)) and found[0] != 0


def test_collate_in_a_worker_writes_to_shared_memory(travel: Travel) -> None:
    assert indices(list(loader(travel, Samples("tensor"), collate_fn=shared_collate))) == list(range(SIZE))


def test_custom_collate_arrives(travel: Travel) -> None:
    bags = list(loader(travel, Samples("tensor"), collate_fn=Bag))
    assert indices([bag.x for bag in bags]) == list(range(SIZE))
    for bag in bags:
        assert torch.equal(torch.stack(bag.samples), bag.x) and torch.equal(bag.sums, bag.x[:, 0] * 100)


def test_rows_of_one_tensor_are_one_memory_a_worker(travel: Travel) -> None:
    rows = torch.utils.data.TensorDataset(torch.arange(SIZE * 3.0).reshape(SIZE, 3))
    found = [row for (row,) in loader(travel, rows, batch_size=None)]
    assert torch.equal(torch.stack(found), rows.tensors[0])
    assert len({cdata(row) for row in found}) <= 2


def test_dataset_in_shared_memory_is_read_and_written_by_workers(travel: Travel) -> None:
    x = torch.zeros(SIZE, 3).share_memory_()
    marks = Marks(x)
    assert sorted(int(batch.sum()) for batch in loader(travel, marks, batch_size=1)) == list(range(SIZE))
    assert x[:, 0].tolist() == list(range(SIZE))


class Marks(torch.utils.data.Dataset[Any]):
    def __init__(self, x: torch.Tensor) -> None:
        self.x = x

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> Any:
        self.x[index, 0] = index
        return self.x[index]


def test_loops_that_are_left_early_leave_nothing(travel: Travel) -> None:
    for _ in range(4):
        for batch in loader(travel, Samples("tensor"), prefetch_factor=4):
            assert (batch[0] == 0).all()
            break
    again = loader(travel, Samples("tensor"), persistent_workers=True)
    for _ in range(3):
        assert indices([next(iter(again))]) == [0, 1, 2, 3]


def test_exception_in_a_worker_reaches_the_trainer(travel: Travel) -> None:
    several = loader(travel, Samples("raises"), persistent_workers=True)
    for _ in range(2):
        batches = []
        with pytest.raises(ValueError, match=r"(?s)Caught ValueError in DataLoader worker process [01]\..*sample 13 is broken"):
            for batch in several:
                batches.append(batch)
        assert indices(batches) == list(range(12))


@pytest.mark.filterwarnings("ignore")
def load_from_killed(travel: Travel) -> None:
    with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid\(?s?\)? .*\) (is killed by signal: Killed|exited unexpectedly)"):
        list(loader(travel, Samples("dies")))


def test_killed_worker_is_an_error_in_the_trainer(travel: Travel) -> None:
    load_from_killed(travel)
    gc.collect()  # the exception kept the loader
    assert indices(list(loader(travel, Samples("tensor")))) == list(range(SIZE))
    ndshm.gc(in_flight=True)  # a batch that was pickled when its worker was killed keeps its time


def sum_of_kept() -> float:
    return float(sum(batch.sum() for batch in kept[0]))


def test_trainer_sends_batches_on(travel: Travel) -> None:
    batches = list(loader(travel, Samples("tensor")))
    with Child(travel) as child:
        child.ask(keep, batches)
        assert child.ask(sum_of_kept) == 100 * sum(range(SIZE))
        batches[5].zero_()
        assert child.ask(sum_of_kept) == 100 * (sum(range(SIZE)) - 20 - 21 - 22 - 23)


def train(travel: Travel) -> None:
    compiled = torch.compile(lambda x: x.sin() + x.add_(1), backend="eager")
    for batch in loader(travel, Samples("tensor")):
        expected = batch.sin() + batch + 1
        assert torch.equal(compiled(batch), expected)


@pytest.mark.filterwarnings("ignore")
def test_compiled_function_takes_batches(travel: Travel) -> None:
    process = travel.process(in_trainer, travel)  # what torch.compile imports stays there
    finish(process)


def in_trainer(travel: Travel) -> None:
    torch.multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    train(travel)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_pinned_batches_arrive(travel: Travel) -> None:
    batches = list(loader(travel, Samples("tensor"), pin_memory=True))
    assert all(batch.is_pinned() for batch in batches) and indices(batches) == list(range(SIZE))


PROGRAM = """
import os, sys, time
import torch, torch.utils.data
from travelling import Travel

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 10**6
    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.full((1000,), float(index))

def main():
    travel = Travel(sys.argv[1])
    travel.begin()
    loader = torch.utils.data.DataLoader(Slow(), batch_size=4, num_workers=2, worker_init_fn=travel.join)
    kept = []
    iterator = iter(loader)
    for batch in iterator:
        kept.append(batch)
        if len(kept) == 3:
            print(*[worker.pid for worker in iterator._workers], flush=True)

if __name__ == "__main__":
    main()
"""


def test_interrupt_ends_trainer_and_workers(travel: Travel, tmp_path: Any) -> None:
    """As Ctrl-C does, which the terminal sends to all of them."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(program), travel.name]
    trainer = subprocess.Popen(command, env=environment, start_new_session=True, stdout=-1, stderr=-1, text=True)
    try:
        assert trainer.stdout is not None
        workers = [int(number) for number in trainer.stdout.readline().split()]
        assert len(workers) == 2
        os.killpg(trainer.pid, signal.SIGINT)
        _, errors = trainer.communicate(timeout=LIMIT // 2)
    finally:
        if trainer.poll() is None:
            os.killpg(trainer.pid, signal.SIGKILL)
            trainer.wait()
    assert trainer.returncode == -signal.SIGINT and "KeyboardInterrupt" in errors
    assert not re.search(r"Segmentation|resource_tracker|leaked|NoSpace|HandleExpired", errors), errors
    assert not any(os.path.exists(f"/proc/{worker}") for worker in workers)
