"""`ndshm.SharedList`: a read-only list that workers read without a copy of it."""

from __future__ import annotations

import copy
import gc
import json
import multiprocessing
import os
import pickle
import random
import re
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ndshm
from ndshm import in_flight
from test_share import every_array_is_freed

METHODS = ["fork", "spawn", "forkserver"]

#: The autouse fixture of test_share.py is one of this module too.
__all__ = ["every_array_is_freed"]

MIXED: list[Any] = [b"", b"bytes", b"\0" * 5000, "text", "ü", None, True, 3.5, 10**50, (1, [2, {3}]), {"path": "a.png"}, Path("b")]


def names() -> set[str]:
    return {name for name in os.listdir("/dev/shm") if re.fullmatch(r"ndshm-[0-9a-f]+", name)}


@pytest.mark.parametrize("items", [MIXED, [], [b"only"], list(range(1000))])
def test_list_behaves_like_an_ordinary_one(items: list[Any]) -> None:
    shared = ndshm.SharedList(items)
    assert isinstance(shared, Sequence) and len(shared) == len(items)
    assert list(shared) == items and list(reversed(shared)) == items[::-1]
    for index in range(-len(items), len(items)):
        assert shared[index] == items[index] and type(shared[index]) is type(items[index])
    for index in (len(items), -len(items) - 1, 1 << 70, -(1 << 70)):
        with pytest.raises(IndexError):
            shared[index]
    for part in (slice(None), slice(2, 5), slice(-3, None), slice(None, None, -2), slice(5, 2), slice(0, 1 << 70)):
        assert shared[part] == items[part]
    for item in items:
        assert item in shared and shared.index(item) == items.index(item) and shared.count(item) == items.count(item)
    with pytest.raises(ValueError):
        shared.index("missing")
    if items:
        assert shared[np.int64(0)] == items[0]
    for wrong in ("0", 1.0, None, (0, 1)):
        with pytest.raises(TypeError):
            shared[wrong]  # type: ignore[index]


def test_items_come_from_any_iterable_and_are_new_each_time() -> None:
    shared = ndshm.SharedList([number] for number in range(3))
    first = shared[1]
    first.append("changed")
    assert shared[1] == [1] and shared[1] is not shared[1]
    assert repr(shared) == f"<ndshm.SharedList: 3 items, {shared.nbytes} bytes>"


def test_arrays_in_the_list_are_copies() -> None:
    shared = ndshm.SharedList([np.arange(10), np.ones((2, 3), "f4")])
    x = shared[0]
    x[0] = 5
    assert shared[0][0] == 0 and shared[1].shape == (2, 3)


def test_list_cannot_be_written() -> None:
    shared = ndshm.SharedList([1, 2])
    with pytest.raises(TypeError):
        shared[0] = 3  # type: ignore[index]
    with pytest.raises(ndshm.PermissionDenied):
        shared._array.write().__enter__()
    assert memoryview(shared._array).readonly and shared._content.readonly


def test_list_needs_little_more_than_its_pickles() -> None:
    items = [os.urandom(100) for _ in range(1000)]
    assert ndshm.SharedList(items).nbytes <= 1000 * (100 + 8 + 24)


def test_copies_are_the_list_itself() -> None:
    shared = ndshm.SharedList([1, 2])
    assert copy.copy(shared) is shared and copy.deepcopy([shared])[0] is shared


def test_pickle_leads_to_the_same_memory() -> None:
    before = names()
    shared = ndshm.SharedList([b"x" * 100_000, "end"])
    data = pickle.dumps(shared)
    assert len(data) < 600 and len(names() - before) == 1
    lists = [pickle.loads(data) for _ in range(3)]
    del shared
    gc.collect()
    assert all(one[0] == b"x" * 100_000 and one[-1] == "end" for one in lists)
    assert len(names() - before) == 1
    del lists
    gc.collect()
    in_flight.clear()
    assert names() == before


def test_subclass_stays_one() -> None:
    same = pickle.loads(pickle.dumps(Derived([1, 2])))
    assert type(same) is Derived and list(same) == [1, 2]
    in_flight.clear()


class Derived(ndshm.SharedList[int]):
    """A subclass."""


def item_of(shared: Any, index: int) -> Any:
    return shared[index]


def send_back(inbox: Any, outbox: Any) -> None:
    outbox.put(inbox.get())


@pytest.mark.parametrize("method", METHODS)
def test_list_travels_through_everything(method: str) -> None:
    shared = ndshm.SharedList(MIXED)
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        assert pool.starmap(item_of, [(shared, index) for index in range(len(MIXED))]) == MIXED
        pool.close()
        pool.join()
    with ProcessPoolExecutor(1, mp_context=context) as executor:
        assert executor.submit(item_of, shared, -1).result() == MIXED[-1]
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=send_back, args=(inbox, outbox))
    process.start()
    inbox.put(shared)
    same = outbox.get(timeout=60)
    process.join()
    assert list(same) == MIXED and same._array.id == shared._array.id
    # What was sent was loaded once, and keeps nothing.
    assert shared._array.in_flight == 0


def test_joblib_carries_the_list() -> None:
    import joblib

    shared = ndshm.SharedList(MIXED)
    tasks = [joblib.delayed(item_of)(shared, index) for index in range(len(MIXED))]
    assert joblib.Parallel(n_jobs=2, backend="loky")(tasks) == MIXED
    joblib.externals.loky.get_reusable_executor().shutdown()


def wait_with_list(shared: Any, pipe: Any) -> None:
    pipe.send(shared[0])
    pipe.recv()


@pytest.mark.parametrize("method", METHODS)
def test_list_of_killed_workers_is_reclaimed(method: str) -> None:
    before = names()
    shared = ndshm.SharedList(MIXED)
    context = multiprocessing.get_context(method)
    near, far = context.Pipe()
    workers = [context.Process(target=wait_with_list, args=(shared, far)) for _ in range(2)]
    for worker in workers:
        worker.start()
    assert [near.recv(), near.recv()] == MIXED[:1] * 2
    for worker in workers:
        worker.kill()
        worker.join()
    assert list(shared) == MIXED
    del shared
    # `workers` has the arguments of its processes only until they are started.
    gc.collect()
    ndshm.gc()
    assert names() == before


def test_item_that_cannot_be_pickled_is_named() -> None:
    before = names()
    with pytest.raises((AttributeError, pickle.PicklingError)) as caught:
        ndshm.SharedList([1, 2, lambda: None, 4])
    assert "This is item 2 of the SharedList." in caught.value.__notes__
    assert names() == before


def test_list_without_room_leaves_nothing() -> None:
    before = names()
    program = """
import resource, ndshm
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    ndshm.SharedList([bytes(1 << 21)])
except ndshm.NoSpace:
    print("NoSpace")
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("NoSpace\n", "")
    assert names() == before


def test_list_needs_no_numpy() -> None:
    program = """
import pickle, sys
sys.modules["numpy"] = None
import ndshm
shared = ndshm.SharedList([1, "two"])
assert list(pickle.loads(pickle.dumps(shared))) == [1, "two"]
ndshm.in_flight.clear()
"""
    subprocess.run([sys.executable, "-c", program], check=True)


ITEMS = 100_000


def metadata(number: int) -> dict[str, Any]:
    return {"path": f"images/{number:08}.png", "label": number % 1000, "box": [number / 7, number / 5, number / 3, float(number)]}


def private_memory() -> int:
    """Return how many bytes of memory belong to this process alone, apart from what it has mapped of files and not written."""
    total = 0
    is_anonymous = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        parts = line.split()
        if not parts[0].endswith(":"):
            is_anonymous = parts[4] == "0"
        elif parts[0] == ("Private_Dirty:" if is_anonymous else "Anonymous:"):
            total += int(parts[1]) << 10
    return total


def growth(items: Any, outbox: Any) -> None:
    """A worker: read all items, and tell by how much its private memory grew."""
    before = private_memory()
    rng = random.Random(1)
    for _ in range(len(items)):
        index = rng.randrange(len(items))
        assert items[index]["label"] == index % 1000
    assert items[0] == metadata(0) and items[-1] == metadata(len(items) - 1)
    outbox.put(private_memory() - before)


def grow_in_worker(method: str, items: Any) -> int:
    context = multiprocessing.get_context(method)
    outbox = context.SimpleQueue()
    worker = context.Process(target=growth, args=(items, outbox))
    worker.start()
    grown: int = outbox.get()
    worker.join()
    assert worker.exitcode == 0
    return grown


def measure() -> None:
    shared = ndshm.SharedList(metadata(number) for number in range(ITEMS))
    result = {method: grow_in_worker(method, shared) for method in METHODS}
    ordinary = [metadata(number) for number in range(ITEMS)]
    print(json.dumps({**result, "ordinary": grow_in_worker("fork", ordinary), "nbytes": shared.nbytes}))


def test_workers_that_read_the_list_do_not_grow(capsys: pytest.CaptureFixture[str]) -> None:
    # In a process of its own, so that the memory of the other tests does not count.
    program = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\nimport test_shared_list\ntest_shared_list.measure()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    grown = json.loads(done.stdout)
    with capsys.disabled():
        print(f"\n\nprivate memory of a worker that reads {ITEMS} items, in KiB:", {key: value >> 10 for key, value in grown.items()})
    assert grown["nbytes"] > 8 << 20
    assert grown["ordinary"] > 16 << 20, "the fork of an ordinary list is copied"
    for method in METHODS:
        assert grown[method] < grown["ordinary"] // 4, method
