"""What arrives through each transport, and what is left when its processes end or are killed. Prints a table."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest

import ndshm
from transports import TRANSPORTS, until

#: How long a pickle keeps an array here, instead of ten minutes.
GRACE = 1.0

#: Which process the test kills with SIGKILL while the receiver has the array in its hands.
ENDINGS = ["normal", "receiver", "sender"]

#: `ray` takes 5 seconds to start. `scripts/test-python --all` runs it.
SLOW = {"ray"}

SCRIPT = Path(__file__).with_name("transports.py")


class Row(NamedTuple):
    """What became of one array."""

    reached: bool | None
    #: Whether the name was there after all processes had ended.
    left: bool
    #: Whether it was there after the handles had expired, and then after `gc`.
    left_after_gc: bool


def environment(directory: Path) -> dict[str, str]:
    # A killed process leaves the temporary files of multiprocessing and joblib, the latter in /dev/shm unless told otherwise.
    return {
        **os.environ,
        "NDSHM_PICKLE_GRACE": str(GRACE),
        "NDSHM_MANAGER": "off",
        "JOBLIB_TEMP_FOLDER": str(directory),
        "TMPDIR": str(directory),
    }


def send(directory: Path, transport: str, kind: str, ending: str) -> Row:
    log = directory / "log"
    with log.open("wb") as output:
        sender = subprocess.Popen(
            [sys.executable, str(SCRIPT), transport, kind, ending, str(directory)],
            env=environment(directory),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        until(directory / "receiver", lambda: sender.poll() is None)
        if ending != "normal":
            os.kill(int((directory / ending).read_text()), signal.SIGKILL)
            (directory / "go-on").touch()
        status = sender.wait(timeout=60)
    except BaseException:
        print(log.read_text())
        raise
    finally:
        end_group(sender.pid)
        sender.wait()
    assert (status == 0) == (ending != "sender"), log.read_text()
    seen = directory / "seen"
    array = Path("/dev/shm", (directory / "array").read_text())
    reached = json.loads(seen.read_text()) if seen.exists() else None
    until_free(array)
    left = array.exists()
    time.sleep(GRACE)
    ndshm.gc()
    return Row(reached, left, array.exists())


def end_group(group: int) -> None:
    """Kill what a killed sender leaves, but let the resource trackers of multiprocessing and joblib remove its semaphores."""
    end = time.monotonic() + 10
    while members := alive_in(group):
        for pid in members:
            with contextlib.suppress(OSError):
                is_tracker = b"resource_tracker" in Path("/proc", str(pid), "cmdline").read_bytes()
                if not is_tracker or time.monotonic() > end:
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


def alive_in(group: int) -> list[int]:
    """Return the processes of a process group that have not ended."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            state, _, group_of_it = (entry / "stat").read_text().rpartition(") ")[2].split()[:3]
            if int(group_of_it) == group and state != "Z":
                found.append(int(entry.name))
    return found


def until_free(array: Path) -> None:
    """Wait until no process is attached: workers of a killed sender end a moment later."""
    end = time.monotonic() + 30
    # A cleanup of another thread may remove the array between any two looks at it.
    with contextlib.suppress(ndshm.NotFound):
        while ndshm.attached(array.name):
            assert time.monotonic() < end, f"{array} is still attached"
            time.sleep(0.01)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short path: ray's sockets are in it."""
    with tempfile.TemporaryDirectory(prefix="py-") as directory:
        yield Path(directory)


def test_table_of_transports(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    transports = [name for name in TRANSPORTS if name not in SLOW or os.environ.get("NDSHM_TEST_ALL")]
    cases = [(name, "array", ending) for name in transports for ending in ENDINGS]
    cases += [(name, "slice", "normal") for name in transports]
    directories = [place / str(number) for number in range(len(cases))]
    for directory in directories:
        directory.mkdir()
    with ThreadPoolExecutor(4) as threads:
        rows = dict(zip(cases, threads.map(lambda directory, case: send(directory, *case), directories, cases), strict=True))
    with capsys.disabled():
        print_table(transports, rows)
    for (name, kind, ending), row in rows.items():
        what = f"{name}, {kind}, {ending}"
        # A forked child has the memory of its parent, and so every view of it.
        is_shared = kind == "array" or name == "process, fork"
        assert row.reached == (None if ending == "sender" else is_shared), what
        assert not row.left_after_gc, what
        if ending == "normal" and "," in name:
            assert not row.left, f"{what}: multiprocessing loads a pickle once, and the last process frees the array"


def print_table(transports: list[str], rows: dict[tuple[str, str, str], Row]) -> None:
    print("\n\ntransport             array, its slice: shared?   left after normal end, after SIGKILL of receiver, of sender; after gc")
    for name in transports:
        shared = ["yes" if rows[name, kind, "normal"].reached else "copied" for kind in ("array", "slice")]
        ends = [rows[name, "array", ending] for ending in ENDINGS]
        left = ["1 name" if row.left else "nothing" for row in ends]
        after = "nothing" if not any(row.left_after_gc for row in ends) else "SOMETHING"
        print(f"{name:<22}{', '.join(shared):<28}{', '.join(left)}; {after}")
