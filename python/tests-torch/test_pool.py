"""A tensor of an array in a pool's memory: the pool does not use the memory again while any process has the tensor.

Pools belong to Rust programs; the one here is `pool.rs`. `NDSHM_TEST_POOL` is the path of its program.
"""

from __future__ import annotations

import gc
import os
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from peers import Peer, eventually, hold

import ndshm
from ndshm.torch import as_tensor


class Pool:
    """The process with the pool."""

    def __init__(self, name: str) -> None:
        command = [os.environ["NDSHM_TEST_POOL"], name]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.line() == "published"

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def ask(self, question: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(question + "\n")
        self.process.stdin.flush()
        return self.line()


@pytest.fixture
def pool(name: str) -> Iterator[Pool]:
    pool = Pool(name)
    yield pool
    pool.process.communicate(timeout=60)
    assert pool.process.returncode == 0


def lend(name: str) -> torch.Tensor:
    """Make a tensor of the pool's array, and close the array."""
    with ndshm.open(name) as array:
        return as_tensor(array)


def is_whole(tensor: torch.Tensor) -> bool:
    return bool((tensor == 7).all())


def test_pool_does_not_reuse_the_memory_of_a_tensor(pool: Pool, name: str) -> None:
    tensor = lend(name)
    assert ndshm.attached(name) and pool.ask("drop") == "1"
    with pytest.raises(ndshm.NotFound):
        ndshm.open(name)
    for _ in range(20):
        assert pool.ask("take") == "new" and is_whole(tensor)
    with Peer(hold) as peer:
        assert peer.ask(tensor) == 7
        del tensor
        gc.collect()
        for _ in range(20):
            assert pool.ask("take") == "new" and peer.ask("look") == 7
    eventually(lambda: pool.ask("take") == "recycled")


def make_and_hold(inbox: Any, outbox: Any, name: str) -> None:
    outbox.put(lend(name))
    inbox.get()


def test_tensor_of_a_killed_process_keeps_its_receivers_memory(pool: Pool, name: str) -> None:
    with Peer(make_and_hold, name) as producer:
        tensor = producer.outbox.get(timeout=60)
        assert pool.ask("drop") == "1"
        producer.kill()
        for _ in range(20):
            assert pool.ask("take") == "new" and is_whole(tensor)
    row = tensor[1:]
    del tensor
    gc.collect()
    assert pool.ask("take") == "new" and is_whole(row)
    del row
    eventually(lambda: pool.ask("take") == "recycled")


def test_dataloader_workers_keep_the_memory(pool: Pool, name: str) -> None:
    loader = torch.utils.data.DataLoader(lend(name), batch_size=1000, num_workers=2)  # type: ignore[arg-type]
    batches = iter(loader)
    assert is_whole(next(batches)) and pool.ask("drop") == "1"
    for batch in batches:
        assert pool.ask("take") == "new" and is_whole(batch)
    del loader, batches, batch
    eventually(lambda: pool.ask("take") == "recycled")
