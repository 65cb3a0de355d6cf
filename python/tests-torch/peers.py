"""Other processes of the tests, and what they leave behind."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.multiprocessing

import ndshm
from ndshm import _program


def eventually(is_true: Callable[[], object], seconds: float = 30) -> None:
    """Wait until a condition holds. Fail if it does not."""
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, "it does not happen"
        gc.collect()
        time.sleep(0.005)


def files() -> list[str]:
    """Return the files in the directory of the arrays."""
    return os.listdir(os.environ["NDSHM_EMULATED_DIR"])


# Files that torch's strategy file_system removes no earlier than at the end of this process.
left_by_torch: set[str] = set()


def torch_files() -> list[str]:
    """Return the files of torch's strategy file_system that this process has made."""
    return [name for name in os.listdir("/dev/shm") if name.startswith(f"torch_{os.getpid()}_") and name not in left_by_torch]


def listed(name: str) -> dict[str, Any]:
    """Return the row of the program `ndshm ls`."""
    program = _program.path()
    assert program is not None
    done = subprocess.run([program, "ls", "--json", name], capture_output=True, text=True, check=True)
    (row,) = [row for row in json.loads(done.stdout) if row["path"] == os.path.join(os.environ["NDSHM_EMULATED_DIR"], name)]
    return dict(row)


def make(
    kind: str, shape: tuple[int, ...] = (5, 5), dtype: str = "float32", order: str = "C", name: str = "py-torch"
) -> ndshm.Array:
    """Create an array of zeros of this kind. Only plain ones have the name."""
    if kind == "plain":
        return ndshm.create(name, shape, dtype, order)
    return ndshm.share_zeros(shape, dtype, order, "file_system" if kind == "counted" else "file_descriptor")


class Peer:
    """Another process, with a queue to it and one from it. It is killed at the end of the block, if it has not ended before."""

    def __init__(self, role: Callable[..., None], *arguments: Any, method: str = "spawn") -> None:
        context = torch.multiprocessing.get_context(method)
        self.inbox, self.outbox = context.Queue(), context.Queue()
        self.process = context.Process(target=role, args=(self.inbox, self.outbox, *arguments))
        self.process.start()

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def ask(self, question: Any) -> Any:
        self.inbox.put(question)
        return self.outbox.get(timeout=60)

    def kill(self) -> None:
        if self.process.pid is not None and self.process.is_alive():
            os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(60)
        self.inbox.close()
        self.outbox.close()

    def end(self) -> None:
        """Wait for the end of a process that ends by itself."""
        self.process.join(60)
        assert self.process.exitcode == 0


def hold(inbox: Any, outbox: Any) -> None:
    """Keep one tensor, and answer with its first element when asked."""
    tensor = inbox.get()
    assert tensor.is_shared()
    while True:
        outbox.put(float(tensor.flatten()[0]))
        if inbox.get() == "end":
            return
