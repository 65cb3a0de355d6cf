"""An array is pickled as its name and layout: the receiver attaches to the same memory."""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import ndshm
from ndshm import _array


def add_one(array: ndshm.Array) -> tuple[int, str]:
    with array.write() as x:
        x[...] += 1
    return int(array[0, 0]), array.order


def through_queue(inbox: Any, outbox: Any) -> None:
    outbox.put(add_one(inbox.get()))


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pools_queues_and_pipes_share_the_memory(name: str, method: str) -> None:
    array = ndshm.create(name, (2, 3), "i4", "F")
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        assert pool.map(add_one, [array])[0] == (1, "F")
        pool.close()
        pool.join()
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=through_queue, args=(inbox, outbox))
    process.start()
    inbox.put(array)
    assert outbox.get(timeout=60) == (2, "F")
    process.join()
    near, far = context.Pipe()
    near.send(array)
    assert add_one(far.recv()) == (3, "F")
    with concurrent.futures.ProcessPoolExecutor(1, mp_context=context) as executor:
        assert executor.submit(add_one, array).result() == (4, "F")
    np.testing.assert_array_equal(array[...], np.full((2, 3), 4))


def test_pickled_read_only_array_is_read_only(name: str) -> None:
    ndshm.create(name, 3, "u1")
    again = pickle.loads(pickle.dumps(ndshm.open(name, readonly=True)))
    assert again.readonly and type(again) is ndshm.Array


def test_pickle_of_a_removed_array_says_so(name: str) -> None:
    array = ndshm.create(name, 3, "u1")
    data = pickle.dumps(array)
    assert len(data) < 400
    array.unlink()
    with pytest.raises(ndshm.NotFound):
        pickle.loads(data)


def test_pickle_from_another_machine_says_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    array = ndshm.create(name, 3, "u1")
    monkeypatch.setattr(_array, "_machine", lambda: "another")
    data = pickle.dumps(array)
    monkeypatch.undo()
    with pytest.raises(ndshm.NdshmError, match="another machine"):
        pickle.loads(data)


def test_pickle_names_the_directory(name: str, tmp_path: Any) -> None:
    array = ndshm.create(name, 3, "u1")
    data = pickle.dumps(array)
    program = f"import pickle, sys; array = pickle.loads({data!r}); array[0] = 9"
    environment = {**os.environ, "EMULATE_SHM": "1", "NDSHM_EMULATED_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)
    assert array[0] == 9


def test_ten_thousand_arrays_need_few_descriptors(name: str) -> None:
    program = f"""
import resource, ndshm
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
first = ndshm.create({name!r}, 3, 'u1')
arrays = [ndshm.open({name!r}) for _ in range(10_000)]
arrays[-1][0] = 4
assert first[0] == 4
"""
    subprocess.run([sys.executable, "-c", program], check=True)
