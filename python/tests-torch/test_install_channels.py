"""Thousands of tensors through everything that carries them, and the end of a process that still has some.

Each runs under torch's own two strategies and under `ndshm.torch.install`.
"""

from __future__ import annotations

import concurrent.futures
import os
import subprocess
import sys
from typing import Any

import pytest
import torch
import torch.multiprocessing
import ndshm
from travelling import LIMIT, Child, Travel, descriptors, fails, finish, give, keep, kept, mappings

COUNT = 1000
# How many tensors are under way at a time.
WINDOW = 16


def number(index: int) -> torch.Tensor:
    """Return a tensor of one of many sizes, so that memory which is used again does not fit by chance."""
    return torch.full((1 + index * 37 % 3000,), float(index))


def check(x: torch.Tensor, index: int, plus: int) -> None:
    assert x.shape == (1 + index * 37 % 3000,) and (x == index + plus).all()


def exchange(send: Any, receive: Any) -> None:
    """Send tensors to a process that adds 1 to them and sends them back. Keep every hundredth, and look at those at the end."""
    sent, late = {}, []
    for index in range(COUNT + WINDOW):
        if index < COUNT:
            sent[index] = number(index)
            send(sent[index])
        if index >= WINDOW:
            done = index - WINDOW
            back = receive()
            check(back, done, 1)
            check(sent.pop(done), done, 1)  # the same memory
            if done % 100 == 0:
                late.append((back, done))
        if index == COUNT // 4:
            before = mappings(), descriptors()
    assert mappings() <= before[0] + 100 and descriptors() <= before[1] + 40, "the process grows"
    for back, done in late:
        check(back, done, 1)


def add_from_queue(inbox: Any, outbox: Any) -> None:
    for _ in range(COUNT):
        outbox.put(inbox.get().add_(1))
    inbox.get()


@pytest.mark.parametrize("kind", ["Queue", "SimpleQueue"])
def test_queue_carries_thousands(travel: Travel, kind: str) -> None:
    context = torch.multiprocessing.get_context("fork")
    inbox, outbox = getattr(context, kind)(), getattr(context, kind)()
    process = travel.process(add_from_queue, inbox, outbox)
    exchange(inbox.put, outbox.get)
    inbox.put("end")
    finish(process)


def add_from_joinable_queue(inbox: Any, outbox: Any) -> None:
    for _ in range(COUNT):
        outbox.put(inbox.get().add_(1))
        inbox.task_done()
    inbox.get()
    inbox.task_done()


def test_joinable_queue_carries_thousands(travel: Travel) -> None:
    context = torch.multiprocessing.get_context("fork")
    inbox, outbox = context.JoinableQueue(), context.JoinableQueue()
    process = travel.process(add_from_joinable_queue, inbox, outbox)
    exchange(inbox.put, outbox.get)
    inbox.put("end")
    inbox.join()
    finish(process)


def add_from_pipe(pipe: Any) -> None:
    for _ in range(COUNT):
        pipe.send(pipe.recv().add_(1))
    pipe.recv()


def test_pipe_carries_thousands(travel: Travel) -> None:
    here, there = torch.multiprocessing.get_context("fork").Pipe()
    process = travel.process(add_from_pipe, there)
    exchange(here.send, here.recv)
    here.send("end")
    finish(process)


def add_from_manager(inbox: Any, outbox: Any, count: int) -> None:
    for _ in range(count):
        outbox.put(inbox.get().add_(1))
    inbox.get()


def test_manager_carries_hundreds(travel: Travel) -> None:
    with torch.multiprocessing.get_context("fork").Manager() as manager:
        inbox, outbox, table, row = manager.Queue(), manager.Queue(), manager.dict(), manager.list()
        process = travel.process(add_from_manager, inbox, outbox, 300)
        for index in range(300):
            inbox.put(x := number(index))
            back = outbox.get()
            check(back, index, 1)
            check(x, index, 1)
        table["x"] = x = torch.zeros(5)
        row.append(x)
        table["x"].fill_(3)
        assert (x == 3).all() and (row[0] == 3).all()
        inbox.put("end")
        finish(process)


def add(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1)


def test_executor_carries_thousands(travel: Travel) -> None:
    context = torch.multiprocessing.get_context("fork")
    with concurrent.futures.ProcessPoolExecutor(2, mp_context=context, initializer=travel.join) as executor:
        for start in range(0, COUNT, 100):
            tensors = [number(index) for index in range(start, start + 100)]
            futures = [executor.submit(add, x) for x in tensors]
            for index, future, x in zip(range(start, start + 100), futures, tensors, strict=True):
                check(future.result(LIMIT), index, 1)
                check(x, index, 1)


def fill_own(rank: int, tensors: list[torch.Tensor], travel: Travel) -> None:
    travel.join()
    for index, x in enumerate(tensors):
        if index % 2 == rank:
            x.add_(1)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_spawn_of_torch_carries_hundreds(travel: Travel, method: str) -> None:
    tensors = [number(index).share_memory_() for index in range(100)]
    torch.multiprocessing.start_processes(fill_own, (tensors, travel), 2, start_method=method)  # type: ignore[no-untyped-call]
    for index, x in enumerate(tensors):
        check(x, index, 1)


def leave(queue: Any) -> None:
    queue.put(torch.full((5,), 3.0))


def test_tensor_arrives_after_its_sender_has_ended(travel: Travel, request: pytest.FixtureRequest) -> None:
    fails(request, "torch's file_descriptor asks the sender for the descriptor: Connection refused, or no such file", "file_descriptor")
    queue = torch.multiprocessing.get_context("fork").Queue()
    travel.run(leave, queue)
    assert (queue.get(timeout=LIMIT) == 3).all()


def make_many() -> None:
    keep([number(index) for index in range(100)])


def test_tensors_live_longer_than_their_maker(travel: Travel) -> None:
    with Child(travel) as child:
        child.ask(make_many)
        tensors = child.ask(give)
    for index, x in enumerate(tensors):
        check(x, index, 0)


PROGRAM = """
import atexit, sys
import torch, torch.multiprocessing, torch.utils.data
from travelling import Child, Travel, give, keep

class Late:
    def __init__(self, x):
        self.x = x
    def __del__(self):
        assert self.x.sum() == 10

def look():
    assert kept[0].sum() == 10

def main():
    global kept, child, queue, late, iterator
    travel = Travel(sys.argv[1])
    atexit.register(look)
    travel.begin()
    if sys.argv[2] == "globals":
        child = Child(travel)
        child.ask(keep, torch.ones(10))
        kept = [child.ask(give)]
        kept.append(kept)
        late = Late(kept[0])
        child.ask(give, 0, 0)
    elif sys.argv[2] == "queue":
        queue = torch.multiprocessing.get_context("fork").Queue()
        kept = [torch.ones(10)]
        for x in (kept[0], torch.zeros(1000), torch.zeros(100_000)):
            queue.put(x)
    else:
        kept = [torch.ones(10)]
        data = torch.utils.data.TensorDataset(torch.ones(1000, 10))
        loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, persistent_workers=True, worker_init_fn=travel.join)
        iterator = iter(loader)
        kept.append(next(iterator))

if __name__ == "__main__":
    main()
"""


@pytest.mark.parametrize("place", ["globals", "queue", "loader"])
def test_interpreter_ends_in_silence(travel: Travel, place: str, tmp_path: Any) -> None:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-W", "error", str(program), travel.name, place]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    ndshm.gc(in_flight=True)  # a message that is never read keeps its time


def end_with_tensors() -> None:
    """Keep a tensor in a global until the end of the process."""
    kept.append(kept[0].clone())


def test_child_ends_with_tensors(travel: Travel) -> None:
    x = torch.ones(5)
    with Child(travel) as child:
        child.ask(keep, x)
        child.ask(end_with_tensors)
        child.end()
    assert (x == 1).all()
