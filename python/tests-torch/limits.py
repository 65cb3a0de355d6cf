"""Programs that run into limits: `python limits.py ROLE WAY ARGUMENTS`. Each has a /dev/shm of its own. `test_install_limits.py` runs them.

Nothing here names what is used to send, except `choose`: these are programs of torch.
"""

from __future__ import annotations

import faulthandler
import gc
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from torch.utils.data import DataLoader, Dataset
from ways import choose

import ndshm

KIB, MIB = 1 << 10, 1 << 20


def left() -> dict[str, int]:
    """Return the files in /dev/shm and their sizes."""
    return {entry.name: entry.stat().st_size for entry in os.scandir("/dev/shm")}


def assert_nothing_is_left() -> None:
    """Fail if a tensor keeps a file in /dev/shm, after all were dropped and reclaimed."""
    ndshm.torch.install(False)  # a process keeps the array in which it puts its next small tensors
    end = time.monotonic() + 15  # a worker that ends by itself takes a moment
    while True:
        gc.collect()
        ndshm.gc()
        files = left()
        if not files:
            return
        assert time.monotonic() < end, f"{len(files)} files, {sum(files.values()) >> 20} MiB are left: {list(files)[:5]}"
        time.sleep(0.1)


def filled(size: int, value: float) -> torch.Tensor:
    """Make a private tensor of this many bytes."""
    return torch.full((size // 4,), float(value))


def check(tensor: torch.Tensor, value: float) -> None:
    assert bool((tensor == value).all()), f"{int((tensor != value).sum())} elements are not {value}"


class Made(Dataset[Any]):
    """A dataset of what a function makes of the number of the sample."""

    def __init__(self, length: int, make: Callable[[int], Any]) -> None:
        self.length, self.make = length, make

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        return self.make(index)


def four_tensors(index: int) -> list[torch.Tensor]:
    return [filled(4 * KIB, index + part / 4) for part in range(4)]


def keep_all(count: str, descriptors: str) -> None:
    """A trainer with few descriptors keeps every batch."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (int(descriptors), int(descriptors)))
    batches = list(DataLoader(Made(int(count), four_tensors), batch_size=1, num_workers=2))
    assert len(batches) == int(count)
    for number, batch in enumerate(batches):
        for part, tensor in enumerate(batch):
            assert tensor.shape == (1, KIB)
            check(tensor, number + part / 4)
    maps = len(Path("/proc/self/maps").read_text(encoding="ascii").splitlines())
    print(f"{len(os.listdir('/proc/self/fd'))} descriptors, {maps} mappings, {sum(left().values()) / MIB:.1f} MiB in /dev/shm")
    del batches, batch, tensor
    assert_nothing_is_left()


def of_many_sizes(index: int) -> torch.Tensor:
    return filled((1 + index * 7 % 6) * MIB, index)


def of_24_mib(index: int) -> torch.Tensor:
    return filled(24 * MIB, index)


def as_it_is(batch: list[Any]) -> Any:
    return batch[0]


def fit_one_by_one(count: str) -> None:
    """Each batch fits into /dev/shm together with those that are prefetched, and all of them do not."""
    cases = [(of_many_sizes, int(count), 2, 2), (of_24_mib, max(int(count) // 20, 20), 1, 1)]
    for make, length, workers, prefetch in cases:
        for collate in (None, as_it_is):
            most = 0
            loader = DataLoader(Made(length // 2, make), batch_size=1, num_workers=workers, prefetch_factor=prefetch, collate_fn=collate)
            for number, batch in enumerate(loader):
                check(batch, number)
                if number % 16 == 0:
                    state = os.statvfs("/dev/shm")
                    most = max(most, (state.f_blocks - state.f_bfree) * state.f_frsize)
                del batch
            print(f"{length // 2} batches, at most {most >> 20} MiB")
    assert_nothing_is_left()


def of_64_mib(index: int) -> torch.Tensor:
    return filled(64 * MIB, index)


def leave_early(loops: str) -> None:
    """Loops that are left after the second batch, with others in flight."""
    loader = DataLoader(Made(50, of_64_mib), batch_size=1, num_workers=2)
    for loop in range(int(loops)):
        for number, batch in enumerate(loader):
            check(batch, number)
            if number == 1:
                break
        del batch
        files = left()
        if loop % 10 == 0:
            print(f"loop {loop}: {len(files)} files, {sum(files.values()) >> 20} MiB", flush=True)
    assert_nothing_is_left()


def large_third(index: int) -> torch.Tensor:
    """Make a sample that does not fit, and note when it was made."""
    if index != 2:
        return filled(MIB, index)
    tensor = filled(100 * MIB, index)
    Path(os.environ["TMPDIR"], "made").write_text(repr(time.monotonic()), encoding="ascii")
    return tensor


def one_does_not_fit(way: str) -> None:
    """The trainer gets the worker's error, then the next batch, and the next loop works."""
    for collate in (None, as_it_is):
        batches = iter(DataLoader(Made(8, large_third), batch_size=1, num_workers=2, collate_fn=collate, timeout=20))
        seen = []
        raised: Exception | None = None
        for number in range(8):
            try:
                batch = next(batches)
                check(batch, number)
                seen.append(number)
                del batch
            except Exception as error:
                made = float(Path(os.environ["TMPDIR"], "made").read_text(encoding="ascii"))
                words = " ".join(str(error).split())
                print(f"{type(error).__name__} after {time.monotonic() - made:.2f} s: {words[:200]} .. {words[-200:]}", flush=True)
                if way == "ndshm":
                    assert number == 2 and isinstance(error, ndshm.NoSpace), f"batch {number}"
                    assert time.monotonic() - made < 2
                    # Its traceback would keep the iterator.
                    raised = error.with_traceback(None)
                else:
                    break  # torch's worker is dead
        assert way != "ndshm" or (raised is not None and seen == [0, 1, 3, 4, 5, 6, 7]), seen
        del batches
        gc.collect()
        print(f"then {seen}")
        # The next loop, of batches that fit.
        found = [int(batch[0, 0] if collate is None else batch[0]) for batch in DataLoader(Made(8, small), num_workers=2, collate_fn=collate)]
        assert found == list(range(8)), found
    assert_nothing_is_left()


def small(index: int) -> torch.Tensor:
    return filled(MIB, index)


LATE = [4 * KIB, MIB, 40 * KIB, 8, 3 * MIB] * 6


def send_late(queue: Any) -> None:
    for number, size in enumerate(LATE):
        queue.put((number, filled(size, number)))
    queue.close()
    queue.join_thread()


def read_late(seconds: str) -> None:
    """Messages are read long after their sender has ended and was joined, while /dev/shm is full."""
    queue = torch.multiprocessing.get_context("fork").Queue()
    sender = torch.multiprocessing.get_context("fork").Process(target=send_late, args=(queue,))
    sender.start()
    sender.join(60)
    assert sender.exitcode == 0
    print(f"joined: {len(left())} files, {sum(left().values()) >> 20} MiB", flush=True)
    filling = []
    end = time.monotonic() + float(seconds)
    for size in (MIB, 64 * KIB, 4 * KIB):
        try:
            while True:
                filling.append(ndshm.share_zeros(size, "uint8"))
        except ndshm.NoSpace:
            pass
    assert filling
    while time.monotonic() < end:
        ndshm.gc()
        time.sleep(0.5)
    for number, size in enumerate(LATE):
        got, tensor = queue.get(timeout=30)
        assert got == number and tensor.numel() == size // 4
        check(tensor, number)
    queue.close()
    del tensor, filling
    assert_nothing_is_left()


def used() -> tuple[int, int, int]:
    """Return this process's own memory in KiB, its mappings and its descriptors."""
    gc.collect()
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines())
    maps = len(Path("/proc/self/maps").read_text(encoding="ascii").splitlines())
    return int(status["RssAnon"].split()[0]), maps, len(os.listdir("/proc/self/fd"))


def receive_many(inbox: Any, outbox: Any) -> None:
    while (message := inbox.get()) is not None:
        if message == "used":
            outbox.put(used())
        else:
            number, tensor = message
            assert float(tensor[0]) == number and float(tensor[-1]) == number
            del message, tensor


def send_many(count: str) -> None:
    """Neither the sender nor the receiver of many tensors grows."""
    context = torch.multiprocessing.get_context("fork")
    inbox, outbox = context.SimpleQueue(), context.SimpleQueue()
    receiver = context.Process(target=receive_many, args=(inbox, outbox))
    receiver.start()
    seen = []
    start = time.monotonic()
    for number in range(int(count) + 1):
        if number % (int(count) // 4) == 0:
            inbox.put("used")
            seen.append((used(), outbox.get()))
            print(f"{number}: sender {seen[-1][0]}, receiver {seen[-1][1]}", flush=True)
        # One in ten is large enough for an array of its own.
        inbox.put((number, filled(40 * KIB if number % 10 == 0 else 8 << number % 8, number)))
    print(f"{(time.monotonic() - start) / int(count) * 1e6:.0f} us each")
    inbox.put(None)
    receiver.join(60)
    assert receiver.exitcode == 0
    # The first quarter is the warming.
    for name, early, late in (("sender", seen[1][0], seen[-1][0]), ("receiver", seen[1][1], seen[-1][1])):
        memory, maps, descriptors = (after - before for before, after in zip(early, late, strict=True))
        assert memory < 2 * KIB and maps < 50 and descriptors < 10, f"the {name} grew by {memory} KiB, {maps} mappings, {descriptors} descriptors"
    assert_nothing_is_left()


ROLES: dict[str, Callable[..., None]] = {
    role.__name__: role for role in (keep_all, fit_one_by_one, leave_early, one_does_not_fit, read_late, send_many)
}

if __name__ == "__main__":
    role, way, *arguments = sys.argv[1:]
    # A program that hangs says where.
    faulthandler.dump_traceback_later(float(os.environ.get("LIMITS_HANG", "120")), exit=False)
    multiprocessing.set_start_method("fork")
    choose(way)
    if role == "one_does_not_fit":
        arguments = [way]
    ROLES[role](*arguments)
    print("done")
