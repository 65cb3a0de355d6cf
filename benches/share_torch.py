"""As share.rs, with torch.multiprocessing: arrays per second that one process creates, sends to another and drops."""

import sys
import time

import torch
import torch.multiprocessing as mp

ARRAYS, ELEMENTS, ROUNDS = 4000, 1024, 5


def receive(arrays, sums):
    while True:
        total = 0.0
        while (array := arrays.get()) is not None:
            total += array[0].item()
        sums.put(total)


def send(arrays, sums):
    begin = time.perf_counter()
    for index in range(ARRAYS):
        arrays.put(torch.full((ELEMENTS,), float(index)))
    arrays.put(None)
    assert sums.get() == ARRAYS * (ARRAYS - 1) / 2
    return time.perf_counter() - begin


if __name__ == "__main__":
    torch.set_num_threads(1)
    context = mp.get_context("spawn")
    for strategy in sorted(mp.get_all_sharing_strategies()):
        mp.set_sharing_strategy(strategy)
        # At most 256 arrays in flight, because of the limit of descriptors.
        arrays, sums = context.Queue(256), context.Queue()
        child = context.Process(target=receive, args=(arrays, sums), daemon=True)
        child.start()
        best = min(send(arrays, sums) for _ in range(ROUNDS))
        child.terminate()
        child.join()
        line = f"torch {torch.__version__.split('+')[0]:<5} {strategy:<15} {ARRAYS / best:>8.0f} arrays/s"
        print(f"{line} ({ARRAYS} in {best * 1000:.1f}ms, best of {ROUNDS})")
        sys.stdout.flush()
