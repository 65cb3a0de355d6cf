"""What the workers of torch's DataLoader get from `ndshm.SharedList`, and send back after `ndshm.multiprocessing.install`."""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing
import torch.utils.data

import ndshm
import ndshm.torch

METHODS = ["fork", "spawn", "forkserver"]


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    before = set(os.listdir("/dev/shm"))
    yield
    ndshm.multiprocessing.uninstall()
    gc.collect()
    ndshm.in_flight.clear()
    ndshm.gc()
    assert not {name for name in set(os.listdir("/dev/shm")) - before if re.match("ndshm-|psm_", name)}


def is_shared(x: np.ndarray[Any, Any]) -> bool:
    return isinstance(x.base, memoryview) and isinstance(x.base.obj, ndshm.Array)


class Samples(torch.utils.data.Dataset[Any]):
    """A dataset with metadata in a list."""

    def __init__(self, metadata: Any) -> None:
        self.metadata = metadata

    def __len__(self) -> int:
        return len(self.metadata)

    def __getitem__(self, index: int) -> Any:
        sample = self.metadata[index]
        return np.full((200, 200), sample["label"], "f4"), sample["path"]


def as_it_is(batch: list[Any]) -> list[Any]:
    return batch


def install(worker: int) -> None:
    ndshm.multiprocessing.install()


@pytest.mark.parametrize("method", METHODS)
def test_loader_reads_a_shared_list_and_returns_arrays_in_shared_memory(method: str) -> None:
    samples = Samples(ndshm.SharedList({"path": f"{number}.png", "label": number} for number in range(40)))
    loader = torch.utils.data.DataLoader(
        samples, batch_size=4, num_workers=2, collate_fn=as_it_is, worker_init_fn=install, multiprocessing_context=method
    )
    found = {}
    for batch in loader:
        for x, path in batch:
            assert type(x) is np.ndarray and is_shared(x) and x.flags.writeable
            found[path] = int(x[199, 199])
    assert found == {f"{number}.png": number for number in range(40)}


class Crops(torch.utils.data.Dataset[Any]):
    """Regions of a volume, as the arrays that a download gives."""

    def __init__(self, path: str) -> None:
        self.volume = ndshm.Volume(path)

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        return ndshm.download(self.volume, f"{4 * index}:{4 * index + 4},:,:").result()


@pytest.mark.parametrize("method", METHODS)
def test_loader_returns_what_its_workers_downloaded(method: str, tmp_path: Path) -> None:
    x = np.arange(32**3, dtype="int32").reshape(32, 32, 32)
    ndshm.upload(ndshm.create_volume(tmp_path / "em.zarr", x.shape, (16, 16, 16), x.dtype), x).result()
    crops = Crops(str(tmp_path / "em.zarr"))
    loader = torch.utils.data.DataLoader(crops, batch_size=2, num_workers=2, collate_fn=as_it_is, multiprocessing_context=method, timeout=60)
    found = [ndshm.torch.as_tensor(array) for batch in loader for array in batch]
    assert (torch.cat(found).numpy() == x).all()


def send_back(inbox: Any, outbox: Any) -> None:
    outbox.put(inbox.get())
    inbox.get()


def test_queue_of_torch_carries_small_and_large_arrays() -> None:
    ndshm.multiprocessing.install()
    context = torch.multiprocessing.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=send_back, args=(inbox, outbox))
    process.start()
    inbox.put((np.arange(3), np.arange(100_000), torch.arange(5)))
    small, large, tensor = outbox.get(timeout=60)
    assert not is_shared(small) and is_shared(large)
    assert small.tolist() == [0, 1, 2] and large[99_999] == 99_999 and tensor.tolist() == [0, 1, 2, 3, 4]
    inbox.put(None)
    process.join()
    assert process.exitcode == 0


def test_tensor_of_a_closed_block_is_valid() -> None:
    block = ndshm.SharedMemory(create=True, size=1 << 16)
    tensor = torch.frombuffer(block.buf, dtype=torch.uint8)
    same = torch.frombuffer(ndshm.SharedMemory(block.name).buf, dtype=torch.uint8)
    block.close()
    block.unlink()
    del block
    gc.collect()
    tensor[:] = 3
    assert int(same.sum()) == 3 << 16
