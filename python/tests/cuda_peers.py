"""Times the hand-over of GPU arrays to another process beside torch and CuPy, as far as they are installed. Needs a GPU; scripts/test-cuda runs it.

Each hand-over ends when the receiver has read one element. Medians of 21, in turns.
"""

from __future__ import annotations

import importlib
import multiprocessing
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy

TURNS = 21


def first_of(array: Any) -> int:
    """Returns the first element, which waits for all that the hand-over needs."""
    kind = type(array).__module__.split(".")[0]
    if kind == "ndshm":
        return int(array.part(slice(0, 1)).numpy()[0])
    return int(array[0])


def receiver(tasks: Any, answers: Any) -> None:
    while True:
        array = tasks.get()
        if array is None:
            return
        if isinstance(array, tuple):  # CuPy: the driver's handle, and the length
            cupy = importlib.import_module("cupy")
            handle, length = array
            address = cupy.cuda.runtime.ipcOpenMemHandle(handle)
            memory = cupy.cuda.UnownedMemory(address, length, None)
            array = cupy.ndarray((length,), dtype="u1", memptr=cupy.cuda.MemoryPointer(memory, 0))
            answers.put(first_of(array))
            del array, memory
            cupy.cuda.runtime.ipcCloseMemHandle(address)
        else:
            answers.put(first_of(array))
            del array


def makers(length: int) -> dict[str, tuple[Any, Callable[[Any], Any]]]:
    """Returns for each library that is there how its queue is made, and what to put into it."""
    found: dict[str, tuple[Any, Callable[[Any], Any]]] = {}
    spawn = multiprocessing.get_context("spawn")
    try:
        ndshm_cuda = importlib.import_module("ndshm.cuda")
        array = ndshm_cuda.from_numpy(numpy.full(length, 7, "u1"))
        found["ndshm"] = (spawn, lambda _: array)
    except ImportError as error:
        print("NOT RUN: ndshm:", error)
    try:
        torch = importlib.import_module("torch")
        tensor = torch.full((length,), 7, dtype=torch.uint8, device="cuda")
        found["torch"] = (importlib.import_module("torch.multiprocessing").get_context("spawn"), lambda _: tensor)
    except (ImportError, RuntimeError, AssertionError) as error:
        print("NOT RUN: torch:", error)
    try:
        cupy = importlib.import_module("cupy")
        cupy.cuda.set_allocator(None)  # memory of its own, which the driver's handle leads to
        other = cupy.full(length, 7, dtype="u1")
        found["CuPy, by the driver's handle"] = (
            spawn,
            lambda _: (cupy.cuda.runtime.ipcGetMemHandle(other.data.ptr), length),
        )
    except ImportError as error:
        print("NOT RUN: CuPy:", error)
    return found


def main() -> None:
    for length in (1 << 20, 1 << 30):
        running = {}
        for name, (context, make) in makers(length).items():
            tasks, answers = context.Queue(), context.Queue()
            process = context.Process(target=receiver, args=(tasks, answers))
            process.start()
            running[name] = (tasks, answers, process, make)
        times: dict[str, list[float]] = {name: [] for name in running}
        for _ in range(TURNS + 1):
            for name, (tasks, answers, _process, make) in running.items():
                begin = time.perf_counter()
                tasks.put(make(None))
                assert answers.get(timeout=60) == 7, name
                times[name].append(time.perf_counter() - begin)
        for name, (tasks, _answers, process, _make) in running.items():
            tasks.put(None)
            process.join()
            # The first turn also started the receiver's context.
            print(f"{length >> 20:5} MiB to another process, {name}: {statistics.median(times[name][1:]) * 1e6:8.0f} us")


if __name__ == "__main__":
    main()
