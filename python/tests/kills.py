"""Kills processes that share arrays: `python kills.py --seed S --kills N`. Prints how many names and wrong elements are left.

Each round has three forked processes in a ring. Each of them shares new arrays, sends them on to the next one through pipes, by the pickle of
multiprocessing or by one that can be loaded again and again, checks what it receives, and drops it. It sends numpy arrays too, which
`ndshm.multiprocessing` copies into shared memory. Two of them are killed by SIGKILL at a
random moment, and the third ends by itself. At random moments they fork children, which inherit what they have, hold or are just locking, do
nothing, and end with the round. All processes also write under the lock of one array, which no killed process may keep although its children
live. Then `gc` must find everything that is left.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import pickle
import random
import select
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import numpy as np

import ndshm

SIZE = 5000


def fork_bystander(stop: int, inbox: Connection, outbox: Connection) -> None:
    """Fork a child that inherits everything, closes its copies of the pipes, and ends with the round."""
    if os.fork() == 0:
        try:
            inbox.close()
            outbox.close()
            select.select([stop], [], [], 60)
        finally:
            os._exit(0)


def work(inbox: Connection, outbox: Connection, seed: int, stop: int, report: Path, common: str) -> None:
    """A process of the ring. It reports each array that has wrong elements."""
    rng = random.Random(seed)
    held: list[tuple[ndshm.Array | np.ndarray, int]] = []
    locked = ndshm.open(common)
    if rng.random() < 0.3:
        # While a guard is held, or taken, or released, by this thread or another one.
        threading.Timer(rng.random() * 0.02, fork_bystander, (stop, inbox, outbox)).start()
    try:
        while not select.select([stop], [], [], 0)[0]:
            with locked.write() as x:
                x[:] = os.getpid()
                if rng.random() < 0.01:
                    fork_bystander(stop, inbox, outbox)
                if (x != os.getpid()).any():
                    report.write_text(f"{common}: another process wrote at the same time")
            if rng.random() < 0.2 or not inbox.poll(0.001):
                value = rng.randrange(1 << 30)
                array = np.full(SIZE, value, "i4")
                if rng.random() < 0.6:
                    array = ndshm.share(array, rng.choice(["file_system", "file_descriptor"]))
            else:
                array, value = pickle.loads(inbox.recv_bytes())
                wrong = int((array[...] != value).sum())
                if wrong:
                    report.write_text(f"{array!r}: {wrong} elements are not {value}")
            held.append((array, value))
            if rng.random() < 0.8:
                reusable = isinstance(array, ndshm.Array) and rng.random() < 0.3
                message = (array, value)
                outbox.send_bytes(pickle.dumps(message) if reusable else ForkingPickler.dumps(message))
            if len(held) > 5:
                del held[rng.randrange(len(held))]
    except (BrokenPipeError, EOFError, ConnectionResetError):
        pass  # a neighbour was killed


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 32))
    parser.add_argument("--kills", type=int, default=1000)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    ndshm.multiprocessing.install(threshold=1)
    context = multiprocessing.get_context("fork")
    rounds = kills = found = 0
    wrong: list[str] = []
    start = time.monotonic()
    print(f"seed {options.seed}", flush=True)
    common = f"kills-{os.getpid()}"
    locked = ndshm.create(common, SIZE, "i8")
    while kills < options.kills:
        pipes = [context.Pipe(duplex=False) for _ in range(3)]
        report = Path(f"/tmp/ndshm-kills-{os.getpid()}")
        stop, watch = os.pipe(), os.pipe()
        ring = []
        for number in range(3):
            seed = rng.randrange(1 << 30)
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    inbox, outbox = pipes[number][0], pipes[(number + 1) % 3][1]
                    # The ends of the others are closed, so that a process notices when its neighbour is killed.
                    for end in itertools.chain(*pipes):
                        if end not in (inbox, outbox):
                            end.close()
                    work(inbox, outbox, seed, stop[0], report, common)
                    code = 0
                finally:
                    os._exit(code)
            ring.append(pid)
        for end in itertools.chain(*pipes):
            end.close()
        os.close(watch[1])  # the children and their children have it as long as they live
        victims = rng.sample(ring, 2)
        for victim in victims:
            time.sleep(rng.random() * 0.03)
            os.kill(victim, signal.SIGKILL)
            kills += 1
        # The children of the killed processes live, and have none of their locks.
        try:
            with locked.write(10) as x:
                x[:] = 0
        except ndshm.TimedOut:
            wrong.append(f"a lock is held in round {rounds}")
        os.write(stop[1], b"x")
        ends = {pid: os.waitpid(pid, 0)[1] for pid in ring}
        os.close(stop[1])
        while not select.select([watch[0]], [], [], 60)[0]:
            wrong.append(f"a forked child of round {rounds} does not end")
        for descriptor in (stop[0], watch[0]):
            os.close(descriptor)
        survivor = next(pid for pid in ring if pid not in victims)
        if ends[survivor] != 0:
            wrong.append(f"the survivor of round {rounds} ended with {ends[survivor]}")
        if report.exists():
            wrong.append(report.read_text())
            report.unlink()
        found += len(ndshm.gc(in_flight=True))
        rounds += 1
    ndshm.unlink(common)
    left = ndshm.gc(in_flight=True, dry_run=True)
    seconds = time.monotonic() - start
    print(f"{rounds} rounds, {kills} kills, {found} names reclaimed, {len(left)} names left, {len(wrong)} wrong, {seconds:.0f} s")
    for text in wrong:
        print(text)
    # Killed processes always leave something to be reclaimed, unless nothing was tested.
    return 1 if wrong or left or not found else 0


if __name__ == "__main__":
    sys.exit(main())
