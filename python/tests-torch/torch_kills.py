"""Kills DataLoader workers and trainers: `python torch_kills.py --way ndshm --seed S --kills N`. Prints what they leave.

Each round has a trainer, with a loader of two workers, and a consumer, to which the trainer sends some of its batches on through a plain
Queue. The trainer keeps a few batches, and checks them when it gets and when it drops them; each has a checksum of each row. At random
moments the trainer forks a child, which inherits its batches and checks them when the round ends. Workers and the trainer are killed by
SIGKILL at random moments; some kill themselves after a message was made and before it is sent. A trainer of a killed worker gets an
error of torch, and starts its loader again.

When all processes of a round have ended, what plain `ndshm gc` leaves must be in flight, with a deadline. After the last deadline
it must leave nothing. One hang is Python's own: a process that waits for the write lock of a queue, with which the other writer was killed.
One is torch's own: a worker that had not noted its parent when that was killed waits for work for ever.
"""

from __future__ import annotations

import argparse
import collections
import faulthandler
import gc
import json
import linecache
import multiprocessing.queues
import os
import queue
import random
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing
import torch.utils.data._utils as loading
from torch.utils.data import DataLoader, Dataset
from ways import WAYS, choose

import ndshm
from ndshm import _program

CONTEXT = torch.multiprocessing.get_context("fork")
ROWS = 4

#: Every process of a round ends within this many seconds after the kills, or hangs.
PATIENCE = 40.0

#: Workers look this often whether their trainer lives. torch has 5 s, which would make a thousand kills last hours.
CHECK = 0.3

#: Where the processes of this run say what they find.
PLACE = Path(tempfile.mkdtemp(prefix="torch-kills-"))


def report(kind: str, text: str) -> None:
    """Note what a process found, so that it is not lost if the process is killed next."""
    with (PLACE / kind).open("a", encoding="utf-8") as file:
        file.write(f"{os.getpid()}: {text}\n".replace("\\n", " ")[:2000])


def listen() -> None:
    """Let SIGUSR1 write where each thread is."""
    faulthandler.register(signal.SIGUSR1, (PLACE / f"stack-{os.getpid()}").open("w", encoding="ascii"), all_threads=True)


class Stop:
    """Ends a round. It is a pipe: a killed process would keep the lock of an Event."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()

    def wait(self, seconds: float) -> bool:
        return bool(select.select([self.reading], [], [], seconds)[0])

    def is_set(self) -> bool:
        return self.wait(0)

    def set(self) -> None:
        os.write(self.writing, b"x")

    def close(self) -> None:
        os.close(self.reading)
        os.close(self.writing)


class Rows(Dataset[Any]):
    """Random rows with their checksums. The rows of a batch are equally long."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def __len__(self) -> int:
        return 4000

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int, int]:
        length = random.Random(self.seed + index // ROWS).choice([3, 100, 1000, 5000, 40_000, 200_000])
        row = torch.from_numpy(np.random.default_rng([self.seed, index]).integers(0, 256, length, "u1"))
        return row, zlib.crc32(row.numpy()), index


def check(batch: Any, where: str) -> None:
    rows, sums, indices = batch
    for row, expected, index in zip(rows, sums.tolist(), indices.tolist(), strict=True):
        if zlib.crc32(row.numpy()) != expected:
            report("wrong", f"{where}: a row of sample {index}, {row.numel()} bytes, has another checksum")


def as_list(batch: list[Any]) -> Any:
    """Make private tensors, which are moved when they are sent."""
    rows, sums, indices = zip(*batch, strict=True)
    return torch.stack(rows), torch.tensor(sums), torch.tensor(indices)


class Suicidal:
    """Stands for the pickler of plain queues: now and then, the process is killed after it has made a message and before it sends it."""

    def __init__(self, pickler: Any, seed: int) -> None:
        self.pickler, self.rng = pickler, random.Random(seed)

    def dumps(self, value: Any, *arguments: Any) -> Any:
        made = self.pickler.dumps(value, *arguments)
        if self.rng.random() < 0.01:
            report("between", "killed between move and send")
            os.kill(os.getpid(), signal.SIGKILL)
        return made

    def __getattr__(self, name: str) -> Any:
        return getattr(self.pickler, name)


def start_worker(seed: int) -> Any:
    def start(number: int) -> None:
        torch.set_num_threads(1)
        listen()
        be_suicidal(seed + number)

    return start


def be_suicidal(seed: int) -> None:
    queues: Any = multiprocessing.queues
    if not isinstance(queues._ForkingPickler, Suicidal):
        queues._ForkingPickler = Suicidal(queues._ForkingPickler, seed)


def fork_bystander(kept: list[Any], stop: Stop) -> None:
    """Fork a child that has the trainer's batches, and checks them at the end."""
    if os.fork() == 0:
        try:
            stop.wait(PATIENCE)
            for batch in kept:
                check(batch, "a forked child")
        finally:
            os._exit(0)


#: What torch says if its worker is killed. The rest is an error of the way.
EXPECTED = re.compile(r"DataLoader worker \(pid\(?s?\)? [^)]*\) (is killed by signal|exited unexpectedly)")


def train(way: str, seed: int, stop: Stop, outbox: Any) -> None:
    """Load batches until the end of the round."""
    loading.MP_STATUS_CHECK_INTERVAL = loading.worker.MP_STATUS_CHECK_INTERVAL = CHECK  # type: ignore[misc]
    listen()
    choose(way)
    torch.set_num_threads(1)
    rng = random.Random(seed)
    kept: list[Any] = []
    loops = 0
    while not stop.is_set():
        loops += 1
        try:
            collate = as_list if rng.random() < 0.5 else None
            loader = DataLoader(Rows(seed), ROWS, num_workers=2, collate_fn=collate, worker_init_fn=start_worker(seed + 2 * loops))
            for number, batch in enumerate(loader):
                check(batch, "the trainer gets")
                kept.append(batch)
                if rng.random() < 0.3 and number < 500:
                    outbox.put(batch)
                if rng.random() < 0.003:
                    fork_bystander(kept, stop)
                if len(kept) > 5:
                    check(kept.pop(rng.randrange(len(kept))), "the trainer drops")
                if stop.is_set() or rng.random() < 0.01:
                    break
        except Exception as error:
            if not EXPECTED.search(str(error)):
                report("errors", f"the trainer: {type(error).__name__}: {error}")
            # Its traceback has the loader.
            error.with_traceback(None)
        gc.collect()
    report("loops", str(loops))
    for batch in kept:
        check(batch, "the trainer ends")
    outbox.close()
    outbox.cancel_join_thread()


def consume(way: str, seed: int, stop: Stop, inbox: Any) -> None:
    """Keep some of the batches that the trainer sends on."""
    listen()
    choose(way)
    rng = random.Random(seed)
    kept: list[Any] = []
    received = 0
    while True:
        try:
            batch = inbox.get(timeout=0.1)
        except queue.Empty:
            if stop.is_set():
                break
            continue
        except Exception as error:
            report("errors", f"the consumer: {type(error).__name__}: {error}")
            continue
        received += 1
        check(batch, "the consumer gets")
        kept.append(batch)
        if len(kept) > 5:
            check(kept.pop(rng.randrange(len(kept))), "the consumer drops")
    report("received", str(received))


def descendants(pid: int) -> list[int]:
    """Return the children of a process and theirs, as far as their parents live."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = path.read_text(encoding="ascii").split()
        except OSError:
            continue
        for child in map(int, children):
            found += [child, *descendants(child)]
    return found


def in_group(group: int) -> list[int]:
    """Return the processes of a round that have not ended: they are in one group, whatever became of their parents."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, its_group = path.read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()[:3]
        except OSError:
            continue
        if int(its_group) == group and state not in "ZX":
            found.append(int(path.parent.name))
    return found


def where(pid: int) -> tuple[str, bool]:
    """Return where the threads of a process are, and whether that is a hang of Python's or torch's own."""
    file = PLACE / f"stack-{pid}"
    try:
        parent = int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rsplit(")", 1)[1].split()[1])
        is_orphan = os.getpgid(parent) != os.getpgid(pid)
        os.kill(pid, signal.SIGUSR1)
        time.sleep(0.5)
        text = file.read_text(encoding="ascii")
    except OSError:
        return "it does not say", False
    innermost = re.findall(r"most recent call first\):\n  File \"([^\"]+)\", line (\d+)", text)
    waits_for_lock = any("wacquire" in linecache.getline(path, int(line)) for path, line in innermost)
    waits_for_work = re.search(r"queues\.py\", line \d+ in get\n(  File [^\n]*_loader\.py\", line \d+ in get\n)?  File [^\n]*worker\.py\", line \d+ in _worker_loop\n", text) is not None
    return text, waits_for_lock or (waits_for_work and is_orphan)


class Tally:
    """What all rounds have found."""

    def __init__(self) -> None:
        self.rounds = self.kills = self.pythons = self.most = 0
        self.hangs: list[str] = []
        self.left: list[str] = []


def play(way: str, rng: random.Random, tally: Tally) -> None:
    """One round, in a process group of its own."""
    stop, channel = Stop(), CONTEXT.Queue()
    ring = {}
    group = 0
    for name, role in (("trainer", train), ("consumer", consume)):
        seed = rng.randrange(1 << 30)
        process = CONTEXT.Process(target=in_own_group, args=(group, role, way, seed, stop, channel))
        process.start()
        assert process.pid is not None
        group = group or process.pid
        try:
            os.setpgid(process.pid, group)
        except OSError:  # the child was quicker, or has ended
            pass
        ring[name] = process
    trainer = ring["trainer"].pid
    time.sleep(0.1 + rng.random() * 0.4)
    for _ in range(rng.randrange(1, 6)):
        time.sleep(rng.random() * 0.15)
        victims = descendants(trainer)
        if victims and ring["trainer"].is_alive():
            tally.kills += kill(rng.choice(victims))
    if rng.random() < 0.6:
        everything = [trainer, *descendants(trainer)]
        chosen = [trainer] if rng.random() < 0.5 else rng.sample(everything, rng.randrange(1, len(everything) + 1))
        for pid in chosen:
            tally.kills += kill(pid)
            time.sleep(rng.choice([0, 0, 0.002, 0.02]))
    stop.set()
    end = time.monotonic() + PATIENCE
    while alive := in_group(group):
        for process in ring.values():
            process.join(0)  # otherwise it is a zombie
        if time.monotonic() > end:
            for pid in alive:
                stacks, is_pythons = where(pid)
                name = next((name for name, process in ring.items() if process.pid == pid), "a worker or bystander")
                if is_pythons:
                    tally.pythons += 1
                else:
                    tally.hangs.append(f"round {tally.rounds}: {name} {pid}:\n{stacks}")
                kill(pid)
            end += 5
        time.sleep(0.02)
    for process in ring.values():
        process.join(5)
    channel.close()
    channel.cancel_join_thread()
    stop.close()
    for path in PLACE.glob("stack-*"):
        path.unlink()
    tally.rounds += 1


def in_own_group(group: int, role: Any, *arguments: Any) -> None:
    os.setpgid(0, group)
    role(*arguments)


def kill(pid: int) -> int:
    """Kill one process of this run. Return 1 unless it has ended."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return 0
    return 1


def reclaim(tally: Tally, final: bool) -> dict[str, Any]:
    """Run plain `ndshm gc`. What it leaves must be in flight, and at the end nothing."""
    program = _program.path()
    assert program is not None, "the program `ndshm` is not installed"
    found: dict[str, Any] = json.loads(subprocess.run([program, "gc", "--json"], capture_output=True, text=True, check=True).stdout)
    files = [entry.stat().st_size for entry in os.scandir("/dev/shm") if entry.name.startswith("ndshm-")]
    tally.most = max(tally.most, sum(files))
    if found["failed"] or found["in_use"] or found["kept"] or len(files) != found["in_flight"] or (final and files):
        tally.left.append(f"after round {tally.rounds}: {len(files)} files, {found}")
    if files and not final and found["protected_seconds"] is None:
        tally.left.append(f"after round {tally.rounds}: {len(files)} files without a deadline")
    return found


def lines(kind: str) -> list[str]:
    path = PLACE / kind
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def main() -> int:
    parser = argparse.ArgumentParser(description="Kills DataLoader workers and trainers.")
    parser.add_argument("--way", choices=WAYS, default="ndshm")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--grace", type=float, default=30, help="NDSHM_PICKLE_GRACE: a message is good for so many seconds (30)")
    options = parser.parse_args()
    os.environ["NDSHM_PICKLE_GRACE"] = str(options.grace)
    others = os.listdir("/dev/shm")
    if others:
        sys.exit(f"/dev/shm has {len(others)} files of others: give this program a /dev/shm of its own")
    print(f"seed {options.seed}", flush=True)
    rng, tally, start = random.Random(options.seed), Tally(), time.monotonic()
    reclaimed: collections.Counter[str] = collections.Counter()
    while tally.kills + len(lines("between")) < options.kills:
        play(options.way, rng, tally)
        for entry in reclaim(tally, False)["removed"]:
            reclaimed[entry["kind"]] += 1
        if tally.rounds % 25 == 0:
            print(f"{tally.rounds} rounds, {tally.kills} kills, {time.monotonic() - start:.0f} s", flush=True)
    torchs = [entry.stat().st_size for entry in os.scandir("/dev/shm") if entry.name.startswith("torch_")]
    in_flight = reclaim(tally, False)
    if in_flight["in_flight"]:
        time.sleep(options.grace + 1)
    reclaim(tally, True)
    wrong, errors, between = lines("wrong"), lines("errors"), lines("between")
    received = sum(int(line.split(": ")[1]) for line in lines("received"))
    print(
        f"{options.way}: {tally.rounds} rounds, {tally.kills} kills and {len(between)} between move and send, {time.monotonic() - start:.0f} s\n"
        f"  {sum(reclaimed.values())} files reclaimed, at the end {in_flight['in_flight']} in flight, at most {tally.most / (1 << 20):.1f} MiB\n"
        f"  {len(torchs)} files of torch, {sum(torchs) / (1 << 20):.1f} MiB\n"
        f"  {received} batches sent on, {len(wrong)} wrong, {len(errors)} errors, {len(tally.hangs)} hangs, {tally.pythons} of Python's and torch's own"
    )
    kinds = collections.Counter(re.sub(r"\d+", "N", line.split(": ", 1)[1])[:160] for line in errors)
    for text, count in kinds.most_common(10):
        print(f"  {count} x {text}")
    for text in [*wrong[:10], *tally.hangs[:5], *tally.left[:5]]:
        print(text)
    # A run that killed nothing between move and send, or sent nothing on, has tested less than it says.
    tested = received and (between or options.kills < 200)
    return 1 if wrong or tally.hangs or tally.left or not tested or (errors and options.way == "ndshm") else 0


if __name__ == "__main__":
    sys.exit(main())
