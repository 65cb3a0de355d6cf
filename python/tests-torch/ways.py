"""The ways in which torch's own tensors travel: torch's two strategies, and `ndshm.torch.install()`.

The tests are about the last one. With ``NDSHM_TORCH_PEERS=1`` the others run too, and what is known to fail there is expected to.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch.multiprocessing

import ndshm
import ndshm.torch

TORCH = ("file_descriptor", "file_system")
WAYS = (*TORCH, "ndshm")

#: Whether the tests run as long as their claims say (`NDSHM_TORCH_FULL=1`, an hour), or in seconds.
FULL = bool(os.environ.get("NDSHM_TORCH_FULL"))


def choose(way: str) -> None:
    """Let the tensors of this process and of its children travel in this way."""
    if way == "ndshm":
        ndshm.torch.install()  # type: ignore[attr-defined, unused-ignore]
    else:
        torch.multiprocessing.set_sharing_strategy(way)


def each_way(**known: str) -> Any:
    """Parametrize a test by the way. `known` says how torch's strategies fail, which is no failure of the test."""
    ways = []
    for way in WAYS:
        marks: list[Any] = []
        if way != "ndshm" and not os.environ.get("NDSHM_TORCH_PEERS"):
            continue
        if way in known:
            marks.append(pytest.mark.xfail(reason=known[way], strict=False))
        ways.append(pytest.param(way, marks=marks))
    return pytest.mark.parametrize("way", ways)


def private_mounts() -> list[str] | None:
    """Return the command that gives a process mounts of its own, if one works."""
    for command in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
        if subprocess.run([*command, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False).returncode == 0:
            return command
    return None


def run(program: Path, *arguments: object, directory: Path, shm: str = "1g", timeout: float = 300, **variables: str) -> str:
    """Run a program with a /dev/shm of its own, of this size. Return what it printed; fail if it fails or hangs."""
    mounts = private_mounts()
    if mounts is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("NOT RUN: private mounts cannot be had")
    # All processes of the program end with it, also when it hangs: torch's workers have no other parent here.
    script = f'mount -t tmpfs -o size={shm} none /dev/shm && exec timeout --signal=KILL {timeout:.0f} "$@"'
    command = [*mounts, "--propagation", "private", "--pid", "--fork", "--kill-child", "--mount-proc"]
    command += ["sh", "-e", "-c", script, "sh", sys.executable, str(program), *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name not in ("EMULATE_SHM", "NDSHM_EMULATED_DIR")}
    paths = ":".join([*sys.path[1:], str(Path(__file__).parent)])
    # A path of pytest's is too long for a socket: torch's file_descriptor would fail in a feeder thread, and the receiver would hang.
    with tempfile.TemporaryDirectory(prefix="t-") as short:
        environment |= {"NDSHM_MANAGER": "off", "TMPDIR": short, "PYTHONPATH": paths, **variables}
        done = subprocess.run(command, capture_output=True, text=True, cwd=directory, env=environment, timeout=timeout + 60, check=False)
    assert done.returncode == 0, f"exit {done.returncode} (-9 or 137: it hung)\n{done.stdout}{done.stderr}"
    return done.stdout
