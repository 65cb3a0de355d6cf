"""How torch's own tensors travel in a test, and child processes that get them that way."""

from __future__ import annotations

import gc
import multiprocessing
import multiprocessing.connection
import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.multiprocessing

import ndshm
import ndshm.torch

STRATEGIES = ["file_descriptor", "file_system", "ndshm"]
# Seconds that a test may take, and a process of it. A hang is a failure.
LIMIT = int(os.environ.get("BEHAVE_LIMIT", "60"))

# A forked child that computes with more waits for ever for the threads of its parent's OpenMP.
torch.set_num_threads(1)


@dataclass(frozen=True)
class Travel:
    """Torch's strategy file_descriptor or file_system, or `ndshm.torch.install`."""

    name: str

    def begin(self) -> None:
        """Set this process up."""
        if self.name == "ndshm":
            ndshm.torch.install()  # type: ignore[attr-defined, unused-ignore]
        else:
            torch.multiprocessing.set_sharing_strategy(self.name)

    def end(self) -> None:
        """Let this process send tensors as torch does by default."""
        if self.name == "ndshm":
            ndshm.torch.install(False)  # type: ignore[attr-defined, unused-ignore]
        torch.multiprocessing.set_sharing_strategy("file_descriptor")

    def join(self, *_: object) -> None:
        """Set a child up. Spawned children do not inherit torch's strategy. They must inherit `install`, so this does not call it."""
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(LIMIT)
        if self.name != "ndshm":
            torch.multiprocessing.set_sharing_strategy(self.name)

    def process(self, target: Callable[..., object], *arguments: Any, method: str = "fork") -> Any:
        """Start another process."""
        context = torch.multiprocessing.get_context(method)
        process = context.Process(target=_run, args=(self, target, *arguments), daemon=True)
        process.start()
        return process

    def run(self, target: Callable[..., object], *arguments: Any, method: str = "fork") -> None:
        """Run a function in another process, and wait for its end."""
        finish(self.process(target, *arguments, method=method))

    def pool(self, method: str = "fork") -> Any:
        return torch.multiprocessing.get_context(method).Pool(2, initializer=self.join)

    def carries(self, tensor: Any) -> bool:
        """Return whether a tensor or storage is memory of this way to travel. It is read from the list of this process's mappings."""
        made = file_of(tensor)
        return made == self.name or (made, self.name) == ("file_descriptor", "file_system")  # another process may have removed the name


def finish(process: Any) -> None:
    """Wait for the end of a process that ends by itself, at its alarm at the latest.

    With a timeout, ``join`` would wait for torch's ``torch_shm_manager`` too: a spawned child's has a duplicate of the pipe that ``join``
    waits for, and it ends after the last tensor.
    """
    process.join()
    assert process.exitcode == 0


def _run(travel: Travel, target: Callable[..., object], *arguments: Any) -> None:
    travel.join()
    target(*arguments)


def fails(request: pytest.FixtureRequest, reason: str, *strategies: str) -> None:
    """Expect a failure that torch's own strategies are known for. A success is an error, so that the list stays true."""
    if request.getfixturevalue("travel").name in (strategies or STRATEGIES):
        request.node.add_marker(pytest.mark.xfail(reason=reason, strict=True, raises=(AssertionError, OSError, RuntimeError)))


def skips(travel: Travel, reason: str, *strategies: str) -> None:
    """Skip a case that would end the process."""
    if travel.name in strategies:
        pytest.skip(reason)


def file_of(tensor: Any) -> str:
    """Return which of the strategies has made the memory of a tensor or storage, or "private"."""
    storage = tensor.untyped_storage() if isinstance(tensor, torch.Tensor) else tensor
    for line in Path("/proc/self/maps").read_text(encoding="utf-8").splitlines():
        span, _, _, _, _, *path = line.split(maxsplit=5)
        begin, end = (int(address, 16) for address in span.split("-"))
        if begin <= storage.data_ptr() < end and path:
            if path[0].startswith(os.environ["NDSHM_EMULATED_DIR"]):
                return "ndshm"
            if path[0].startswith("/dev/shm/torch_"):
                return "file_descriptor" if path[0].endswith("(deleted)") else "file_system"
    return "private"


def cdata(tensor: torch.Tensor) -> int:
    """Return the address of the storage that all views of one memory share in a process."""
    return int(tensor.untyped_storage()._cdata)


def mappings() -> int:
    """Return how many mappings this process has."""
    return len(Path("/proc/self/maps").read_text(encoding="utf-8").splitlines())


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


class Failure:
    """The text of an exception in a child."""

    def __init__(self, text: str) -> None:
        self.text = text


# What a child was told to keep.
kept: list[Any] = []


def keep(*values: Any) -> None:
    """Keep values in the child, in place of those of the call before."""
    kept[:] = values


def give(*numbers: int) -> Any:
    """Return what is kept, or those of it."""
    return [kept[number] for number in numbers] if numbers else kept[0]


def forget() -> None:
    kept.clear()
    gc.collect()


def serve(travel: Travel, inbox: Any, outbox: Any) -> None:
    """Call functions until there are no more."""
    travel.join()
    while (call := inbox.get()) is not None:
        function, arguments = call
        try:
            answer = function(*arguments)
        except BaseException:
            answer = Failure(traceback.format_exc())
        outbox.put(answer)
        del call, function, arguments, answer
    kept.clear()


class Child:
    """Another process that calls functions and returns what they return. It is killed at the end of the block, if it has not ended."""

    def __init__(self, travel: Travel, method: str = "fork") -> None:
        context = torch.multiprocessing.get_context(method)
        self.inbox, self.outbox = context.Queue(), context.Queue()
        self.process = context.Process(target=serve, args=(travel, self.inbox, self.outbox), daemon=True)
        self.process.start()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None and self.process.is_alive():
            self.end()
        self.process.kill()
        self.process.join()
        self.inbox.close()
        self.outbox.close()

    def ask(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function in the child. Its exceptions are failures here."""
        self.inbox.put((function, arguments))
        return self.answer()

    def answer(self) -> Any:
        ready = multiprocessing.connection.wait([self.outbox._reader, self.process.sentinel], LIMIT)
        assert self.outbox._reader in ready, f"no answer: the child's exit code is {self.process.exitcode}"
        answer = self.outbox.get(timeout=LIMIT)
        if isinstance(answer, Failure):
            raise AssertionError(answer.text)
        return answer

    def end(self) -> None:
        self.inbox.put(None)
        finish(self.process)


def stop_children() -> None:
    """Kill what a failed test has left."""
    for process in multiprocessing.active_children():
        process.kill()
        process.join()
