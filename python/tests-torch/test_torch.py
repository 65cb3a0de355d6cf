"""torch, which ignores that a buffer is read-only, and which sends arrays through queues of its own."""

from __future__ import annotations

import gc
import pickle
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch.multiprocessing

import ndshm


def tensors(array: ndshm.Array) -> list[torch.Tensor]:
    """Tensors of the array's memory, by each way that torch has."""
    with warnings.catch_warnings():
        # torch warns that it will ignore the flag.
        warnings.simplefilter("ignore")
        return [torch.from_dlpack(array), torch.from_numpy(np.asarray(array)), torch.frombuffer(array, dtype=torch.int32)]


@pytest.mark.parametrize("way", range(3))
def test_writing_to_a_read_only_array_changes_this_process_only(name: str, way: int) -> None:
    shared = ndshm.create(name, 1000, "i4")
    tensor = tensors(ndshm.open(name, readonly=True))[way]
    tensor.add_(1)
    assert tensor.sum() == 1000 and shared[...].sum() == 0


@pytest.mark.parametrize("way", range(3))
def test_writing_to_a_frozen_array_changes_this_process_only(way: int) -> None:
    sender = ndshm.share(np.zeros(1000, "i4"))
    before = pickle.loads(pickle.dumps(sender))
    sender.freeze()
    after = pickle.loads(pickle.dumps(sender))
    for array in (before, after):
        tensor = tensors(array)[way]
        tensor.add_(1)
        assert tensor.sum() == 1000
    assert sender[...].sum() == 0


def test_tensor_is_the_shared_memory_and_keeps_it(name: str) -> None:
    array = ndshm.create(name, (2, 3), "i4", "F")
    tensor = torch.from_dlpack(array)
    assert tensor.stride() == (1, 2)
    tensor[1, 2] = 7
    assert array[1, 2] == 7
    array.close()
    assert ndshm.attached(name) and tensor[1, 2] == 7
    del tensor
    gc.collect()
    assert not ndshm.attached(name)


def test_bfloat16_goes_by_dlpack(name: str) -> None:
    array = ndshm.create(name, 3, "bfloat16")
    tensor = torch.from_dlpack(array)
    assert tensor.dtype == torch.bfloat16
    tensor[1] = 1.0
    assert array[1] == 0x3F80


def test_tensor_that_outlives_its_guard_is_reported(name: str) -> None:
    array = ndshm.create(name, 3, "i4")
    with pytest.warns(ndshm.ViewOutlivesGuard), array.write() as x:
        tensor = torch.from_numpy(x)
    assert tensor is not None


def add_one(inbox: Any, outbox: Any) -> None:
    array = inbox.get()
    with array.write() as x:
        torch.from_numpy(x).add_(1)
    outbox.put(array)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_queues_of_torch_carry_the_memory(method: str) -> None:
    context = torch.multiprocessing.get_context(method)
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=add_one, args=(inbox, outbox))
    process.start()
    array = ndshm.share(torch.zeros(5, dtype=torch.int32))
    inbox.put(array)
    back = outbox.get(timeout=60)
    process.join()
    assert list(back[...]) == list(array[...]) == [1] * 5
    assert array.in_flight == 0


class Rows(torch.utils.data.Dataset[int]):
    """A dataset in shared memory: its workers map it and copy nothing."""

    def __init__(self, array: ndshm.Array) -> None:
        self.array = array

    def __len__(self) -> int:
        return len(self.array)

    def __getitem__(self, index: int) -> int:
        return int(self.array[index])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_dataloader_workers_read_one_array(method: str) -> None:
    array = ndshm.share(np.arange(100))
    loader = torch.utils.data.DataLoader(Rows(array), batch_size=10, num_workers=2, multiprocessing_context=method)
    assert sum(int(batch.sum()) for batch in loader) == 4950
