"""Times the package beside its peers in one run, and prints a table: `python speed.py [--quick] [PATH-OF-RUST-OPEN]`.

Each case takes turns with its peers. Medians of seven rounds, after one that does not count. torch is left out where it is not installed.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import shared_memory
from typing import Any

import numpy as np

import ndshm

ROUNDS = 7
MIB, GIB = 1 << 20, 1 << 30


def median_of_turns(cases: dict[str, Callable[[], float]]) -> dict[str, float]:
    """Run the cases in turns; each returns its seconds."""
    times: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(ROUNDS + 1):
        for name, case in cases.items():
            gc.collect()
            seconds = case()
            if turn:
                times[name].append(seconds)
    return {name: statistics.median(all_times) for name, all_times in times.items()}


def each(count: int, run: Callable[[], Any]) -> Callable[[], float]:
    """The time of one call, from a loop of `count` calls."""

    def timed() -> float:
        start = time.perf_counter()
        for _ in range(count):
            run()
        return (time.perf_counter() - start) / count

    return timed


def once(run: Callable[[], Any]) -> Callable[[], float]:
    """The time of a call, without that of dropping its result."""

    def timed() -> float:
        start = time.perf_counter()
        kept = run()
        seconds = time.perf_counter() - start
        del kept
        return seconds

    return timed


def title(text: str) -> None:
    print(f"\n{text}")


def table(times: dict[str, float], best_of_peers: bool = True) -> None:
    own = times["ndshm"]
    for name, seconds in times.items():
        scale, unit = (1e6, "us") if seconds < 1e-3 else (1e3, "ms")
        print(f"  {name:<52}{seconds * scale:>10.1f} {unit}   {seconds / own:>7.2f} x")


def opening(rust: str | None) -> None:
    shape, name = (1000,), f"bench-{os.getpid()}"
    array = ndshm.create(name, shape, "f4")
    block = shared_memory.SharedMemory(name=f"{name}-peer", create=True, size=4000)

    def peer() -> None:
        memory = shared_memory.SharedMemory(name=block.name)
        x = np.ndarray(shape, "f4", memory.buf)
        del x
        memory.close()

    title("Attach to 4 KB by name, and detach")
    cases = {
        "ndshm": each(5000, lambda: ndshm.open(name)),
        "ndshm, with shape and dtype": each(5000, lambda: ndshm.open(name, shape, "f4")),
        "SharedMemory(name), np.ndarray": each(5000, peer),
        "np.memmap": each(5000, lambda: np.memmap(f"/dev/shm/{name}", "f4", "r+", shape=shape)),
    }
    if rust:
        cases["SharedArray::open in Rust"] = lambda: float(
            subprocess.run([rust, name, "1000"], check=True, capture_output=True, text=True).stdout
        )
    table(median_of_turns(cases))
    block.close()
    block.unlink()
    array.unlink()


def creating(size: int) -> None:
    source = np.ones(size, "u1")
    count = iter(range(1 << 30))

    def peer() -> shared_memory.SharedMemory:
        memory = shared_memory.SharedMemory(create=True, size=size)
        np.ndarray(size, "u1", memory.buf)[:] = source
        memory.unlink()
        return memory

    def own() -> ndshm.Array:
        name = f"bench-{os.getpid()}-{next(count)}"
        array = ndshm.create(name, size, "u1")
        with array.write() as x:
            x[:] = source
        ndshm.unlink(name)
        return array

    title(f"Create {size >> 20} MiB and fill it by copying")

    def private() -> Any:
        x = np.empty(size, "u1")
        x[:] = source
        return x

    cases = {"ndshm": once(own), "ndshm.share": once(lambda: ndshm.share(source)), "SharedMemory": once(peer), "np.empty": once(private)}
    table(median_of_turns(cases))


def first_element(x: Any) -> float:
    return float(x[0])


def first_of_tensor(x: Any) -> float:
    return float(x[0])


def first_of_block(name: str, size: int) -> float:
    memory = shared_memory.SharedMemory(name=name)
    x = np.ndarray(size, "u1", memory.buf)
    value = float(x[0])
    del x
    memory.close()
    return value


def answers(inbox: Any, outbox: Any) -> None:
    """Answer each array with its first element."""
    if "torch" in sys.modules or os.environ.get("BENCH_TORCH"):
        import torch.multiprocessing

        torch.set_num_threads(1)
    work: Any
    while (work := inbox.get()) is not None:
        if isinstance(work, str):
            torch.multiprocessing.set_sharing_strategy(work)
            outbox.put(0.0)
        elif isinstance(work, tuple):
            outbox.put(first_of_block(*work))
        else:
            answer = first_element(work)
            # Dropped now: later it would be part of the time of the next array.
            work = None
            outbox.put(answer)


def sending(size: int, count: int) -> None:
    """Send arrays that are in shared memory already, or (plain pickle, joblib's memmap) are put there or copied by sending."""
    source = np.ones(size, "u1")
    shared = ndshm.share(source)
    block = shared_memory.SharedMemory(create=True, size=size)
    np.ndarray(size, "u1", block.buf)[:] = source
    context: Any = multiprocessing.get_context("spawn")
    torch: Any = None
    try:
        import torch
        import torch.multiprocessing

        context = torch.multiprocessing.get_context("spawn")
        os.environ["BENCH_TORCH"] = "1"
    except ImportError:
        pass
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=answers, args=(inbox, outbox))
    process.start()

    def through(x: Any, count: int = count) -> Callable[[], float]:
        def run() -> None:
            inbox.put(x)
            assert outbox.get() == 1.0

        return each(count, run)

    title(f"{size >> 20} MiB through a Queue to another process, which reads one element and answers")
    cases = {
        "ndshm": through(shared),
        "SharedMemory, its name sent": through((block.name, size)),
        "plain pickle": through(source, 1),
    }
    if torch is not None:
        for strategy in ("file_descriptor", "file_system"):

            def tensor_each_time(strategy: str = strategy) -> float:
                torch.multiprocessing.set_sharing_strategy(strategy)
                inbox.put(strategy)
                outbox.get()
                tensor = torch.from_numpy(source).clone().share_memory_()
                return through(tensor)()

            cases[f"torch, {strategy}"] = tensor_each_time
    times = median_of_turns(cases)
    inbox.put(None)
    process.join()
    table(times)

    title(f"{size >> 20} MiB through a Pool, as above")
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
            import joblib

            dumped = os.path.join(folder, "x")

            def memmap() -> None:
                # What joblib.Parallel does with an argument of 1 MiB and more: a file that the workers map.
                joblib.dump(source, dumped)
                assert pool.apply(first_of_file, (dumped,)) == 1.0

            pools = {
                "ndshm": each(count, lambda: pool.apply(first_element, (shared,))),
                "SharedMemory, its name sent": each(count, lambda: pool.apply(first_of_block, (block.name, size))),
                "plain pickle": each(1, lambda: pool.apply(first_element, (source,))),
                "joblib's memmap": each(1, memmap),
            }
            table(median_of_turns(pools))
    block.close()
    block.unlink()


def first_of_file(path: str) -> float:
    import joblib

    return float(joblib.load(path, mmap_mode="r")[0])


def importing() -> None:
    def run(code: str) -> Callable[[], float]:
        return once(lambda: subprocess.run([sys.executable, "-c", code], check=True))

    title("Start Python and import")
    times = median_of_turns({"ndshm": run("import ndshm"), "pass": run("pass"), "numpy": run("import numpy")})
    table(times)
    print(f"  import ndshm: {(times['ndshm'] - times['pass']) * 1e3:.1f} ms above pass")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("rust_open", nargs="?", help="a program that prints the seconds of one SharedArray::open")
    parser.add_argument("--quick", action="store_true", help="64 MiB instead of 1 GiB, two rounds")
    options = parser.parse_args()
    large = GIB
    if options.quick:
        global ROUNDS
        ROUNDS, large = 2, 64 * MIB
    print(f"Python {sys.version.split()[0]}, numpy {np.__version__}. Medians of {ROUNDS}; the last column is the ratio to ndshm.")
    importing()
    opening(options.rust_open)
    creating(large)
    sending(MIB, 200)
    sending(large, 20)
    ndshm.in_flight.clear()


if __name__ == "__main__":
    main()
