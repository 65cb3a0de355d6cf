"""Runs a function in a process of its own, with CloudVolume as it is or with this package, and returns how that ended."""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import cloudvolume.sharedmemory

import ndshm.cloudvolume
from ndshm import sharedmemory

# After this time a process is killed. It is then said to have been killed by SIGALRM.
LIMIT = 300


class Raised(NamedTuple):
    """The function has raised an exception of this class."""

    name: str


class Killed(NamedTuple):
    """A signal has ended the process."""

    signal: signal.Signals


def outcome(what: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """Run a function, and return its result, or how it failed.

    `what` is "original"; "module", with the functions of `ndshm.sharedmemory` in CloudVolume's module; or "installed".
    """
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other threads exist, and do not matter here
        child = os.fork()
    if child == 0:
        try:
            signal.alarm(LIMIT)
            os.close(reader)
            quiet()
            prepare(what)
            with open(writer, "wb") as pipe:
                pipe.write(pickle.dumps(result(function, arguments)))
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, "rb") as pipe:
        answer = pipe.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status < 0:
        return Killed(signal.Signals(-status))
    return pickle.loads(answer)


def quiet() -> None:
    """Send what CloudVolume and Python's handler of crashes print to nowhere."""
    faulthandler.disable()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    warnings.simplefilter("ignore")


def prepare(what: str) -> None:
    if what == "installed":
        ndshm.cloudvolume.install()
    elif what == "module":
        for name in ("ndarray", "ndarray_fs", "ndarray_shm", "allocate_shm_file", "unlink", "unlink_fs", "unlink_shm"):
            setattr(cloudvolume.sharedmemory, name, getattr(sharedmemory, name))
        sharedmemory.adopt(cloudvolume.sharedmemory)
    else:
        assert what == "original"


def result(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        return Raised(type(error).__name__)
