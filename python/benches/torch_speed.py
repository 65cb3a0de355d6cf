"""Times how torch's own tensors travel between processes: `python torch_speed.py [--quick]`.

Three ways are compared: torch's strategies file_descriptor and file_system, and `ndshm.torch.install()`. Each repetition of a case runs in
a new process, so that each way is installed in a trainer of its own, and the ways take turns.

The time of transport is what a way adds to its yardstick: a loader with workers that stack each batch into the same private memory and send an
integer. Where the trainer reads every byte, the trainer of the yardstick reads as many bytes of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing
from torch.utils.data import DataLoader, Dataset

import ndshm
import ndshm.torch

KIB, MIB = 1 << 10, 1 << 20
TORCH = ("file_descriptor", "file_system")
YARDSTICK = "yardstick"
LABELS = {"file_descriptor": "torch, file_descriptor", "file_system": "torch, file_system", "ndshm": "ndshm", YARDSTICK: "an integer is sent"}

WORKERS, PREFETCH, SAMPLES = 2, 2, 16

#: Bytes of a batch or tensor, and how many are timed; with --quick, a fifth of them.
LOADED = {64 * MIB: 40, 4 * MIB: 300, 4 * KIB: 2000}
SENT = {4 * KIB: 2000, MIB: 500, 64 * MIB: 20}
READS: dict[str, Callable[[Any], float]] = {"one element": lambda x: float(x.view(-1)[0]), "x.sum()": lambda x: float(x.sum())}


def choose(way: str) -> None:
    """Let the tensors of this process travel in this way."""
    if way == "ndshm":
        ndshm.torch.install()  # type: ignore[attr-defined, unused-ignore]
    elif way in TORCH:
        torch.multiprocessing.set_sharing_strategy(way)


# What one repetition does, in a process of its own.


class Samples(Dataset[torch.Tensor]):
    """Gives the same sample again and again, so that loading takes no time."""

    def __init__(self, size: int, batches: int) -> None:
        self.sample = torch.ones(size // SAMPLES // 4)
        self.length = batches * SAMPLES

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.sample


class Stack:
    """Stacks each batch into the same private memory of its worker, and returns an integer."""

    def __init__(self) -> None:
        self.out: torch.Tensor | None = None

    def __call__(self, batch: list[torch.Tensor]) -> int:
        if self.out is None:
            self.out = torch.empty(len(batch), *batch[0].shape)
        torch.stack(batch, 0, out=self.out)
        return 1


def pss(pid: int) -> int:
    """Return the proportional set size of a process, in bytes."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * KIB
    raise ValueError(f"the kernel gives no Pss of process {pid}")


def timed(batches: Iterator[Any], count: int, read: Callable[[Any], float], own: torch.Tensor | None) -> float:
    start = time.perf_counter()
    for _ in range(count):
        batch = next(batches)
        value = read(batch if own is None else own)
        assert value > 0
    return (time.perf_counter() - start) / count


def load(way: str, size: int, reading: str, count: int) -> dict[str, float]:
    """Time a batch of a loader. Neither the start of the workers nor the last batches, of which fewer are in flight, count."""
    warm = max(count // 5, 2 * WORKERS * PREFETCH)
    dataset = Samples(size, warm + count + WORKERS * PREFETCH + 1)
    collate = Stack() if way == YARDSTICK else None
    own = torch.ones(size // 4) if way == YARDSTICK else None
    batches = iter(DataLoader(dataset, batch_size=SAMPLES, num_workers=WORKERS, prefetch_factor=PREFETCH, collate_fn=collate))
    read = READS[reading]
    timed(batches, warm, read, own)
    seconds = timed(batches, count, read, own)
    kept = next(batches)  # as a trainer has it while it computes
    workers = [process.pid for process in batches._workers]  # type: ignore[attr-defined]
    found = {"seconds": seconds, "trainer": pss(os.getpid()), "workers": sum(map(pss, workers))}
    del kept
    for _ in batches:
        pass
    return found


def send_back(inbox: Any, outbox: Any) -> None:
    """Read one element of each tensor, and send the tensor back, until None comes."""
    while (tensor := inbox.get()) is not None:
        if isinstance(tensor, torch.Tensor):
            assert float(tensor[0]) == 1
        outbox.put(tensor)
        del tensor  # while the other process makes the next one


def there_and_back(way: str, size: int, reading: str, count: int) -> dict[str, float]:
    """Time a new tensor that goes to another process and comes back. Its making does not count."""
    context = torch.multiprocessing.get_context("fork")
    inbox, outbox = context.SimpleQueue(), context.SimpleQueue()
    process = context.Process(target=send_back, args=(inbox, outbox))
    process.start()
    source, read, total = torch.ones(size // 4), READS[reading], 0.0
    for turn in range(-max(count // 5, 2), count):
        tensor = source.clone()
        start = time.perf_counter()
        inbox.put(1 if way == YARDSTICK else tensor)
        back = outbox.get()
        value = read(source if way == YARDSTICK else back)
        seconds = time.perf_counter() - start
        assert value > 0
        del tensor, back
        total += seconds if turn >= 0 else 0
    found = {"seconds": total / count, "trainer": pss(os.getpid()), "workers": pss(process.pid)}
    inbox.put(None)
    process.join()
    return found


CASES = {"load": load, "there_and_back": there_and_back}


# What compares them.


def measure(way: str, case: str, size: int, reading: str, count: int) -> dict[str, float]:
    command = [sys.executable, __file__, "--one", way, case, str(size), reading, str(count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        sys.exit(f"{LABELS[way]}, {case}, {size} bytes:\n{done.stdout}{done.stderr}")
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def amount(size: int) -> str:
    return f"{size // MIB} MiB" if size >= MIB else f"{size // KIB} KiB"


def milliseconds(values: list[float]) -> str:
    """Write the median, and the least and the largest value."""
    median, least, most = (1e3 * value for value in (statistics.median(values), min(values), max(values)))
    digits = 1 if median >= 10 else 2 if median >= 1 else 3
    return f"{median:.{digits}f} ({least:.{digits}f} to {most:.{digits}f})"


def megabytes(values: list[float]) -> str:
    return f"{statistics.median(values) / MIB:.0f}"


def compare(title: str, ways: list[str], runs: int, case: tuple[str, int, str, int]) -> None:
    """Run one case, and print its table."""
    results: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for run in range(runs):
        first = run % len(ways)
        for way in ways[first:] + ways[:first]:
            results[way].append(measure(way, *case))
    seconds = {way: [result["seconds"] for result in found] for way, found in results.items()}
    transports = {
        way: [time - yard for time, yard in zip(seconds[way], seconds[YARDSTICK], strict=True)] for way in ways if way != YARDSTICK
    }
    print(f"\n{title}, the trainer reads {case[2]}")
    print(f"  {'':<24}{'ms':>24}{'transport, ms':>26}{'PSS, MiB: trainer':>20}{'others':>8}")
    for way in ways:
        transport = milliseconds(transports[way]) if way in transports else ""
        trainer, others = (megabytes([result[key] for result in results[way]]) for key in ("trainer", "workers"))
        print(f"  {LABELS[way]:<24}{milliseconds(seconds[way]):>24}{transport:>26}{trainer:>20}{others:>8}")
    if "ndshm" in transports and any(way in transports for way in TORCH):
        ratios = []
        for run, own in enumerate(transports["ndshm"]):
            best = min(transports[way][run] for way in TORCH if way in transports)
            ratios.append(best / own if own > 0 else float("inf"))
        print(f"  the better strategy of torch takes {statistics.median(ratios):.2f} times ndshm's transport; in the worst run {min(ratios):.2f}")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description="Times how torch's own tensors travel between processes.")
    parser.add_argument("--quick", action="store_true", help="two repetitions, and a fifth of the batches")
    parser.add_argument("--runs", type=int, help="repetitions (7)")
    parser.add_argument("--ways", nargs="+", choices=[*TORCH, "ndshm"], default=[*TORCH, "ndshm"])
    parser.add_argument("--sizes", nargs="+", type=int, help="only these sizes, in bytes")
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--reads", nargs="+", choices=list(READS), default=list(READS))
    parser.add_argument("--one", nargs=5, metavar=("WAY", "CASE", "SIZE", "READING", "COUNT"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        way, case, size, reading, count = options.one
        choose(way)
        print(json.dumps(CASES[case](way, int(size), reading, int(count))))
        return
    ways = list(options.ways)
    if "ndshm" in ways and not hasattr(ndshm.torch, "install"):
        print("NOT RUN: this ndshm has no ndshm.torch.install")
        ways.remove("ndshm")
    ways.append(YARDSTICK)
    runs = options.runs or (2 if options.quick else 7)
    load_now = " ".join(f"{load:.1f}" for load in os.getloadavg())
    print(
        f"torch {torch.__version__}, Python {sys.version.split()[0]}, {os.cpu_count()} cores, load {load_now}. "
        f"Medians of {runs} runs, each in new processes (least to most). {WORKERS} workers."
    )
    for name, sizes in (("load", LOADED), ("there_and_back", SENT)):
        for size, count in sizes.items():
            if name not in options.cases or (options.sizes and size not in options.sizes):
                continue
            text = f"Batches of {amount(size)}, default collate" if name == "load" else f"{amount(size)} there and back by SimpleQueue"
            for reading in options.reads:
                compare(text, ways, runs, (name, size, reading, max(count // 5, 4) if options.quick else count))


if __name__ == "__main__":
    main()
