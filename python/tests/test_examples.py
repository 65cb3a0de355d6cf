"""The programs in `python/examples`: each runs and leaves nothing behind, and a killed cluster does not do its work twice."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ndshm
from conftest import shared_files
from servers import StallingServer, serving

EXAMPLES = Path(__file__).parents[1] / "examples"

#: What `scripts/test-python --all` runs, because of what it installs: requirements-all.txt.
LARGE = {"napari_view", "ray_cluster"}

#: Eight parts: each is one chunk high, and has four chunks.
SHAPE, CHUNK, PARTS = (64, 64, 64), (8, 32, 32), 8


def programs(*names: str) -> list[Any]:
    no = pytest.mark.skipif(not os.environ.get("NDSHM_TEST_ALL"), reason="needs scripts/test-python --all")
    return [pytest.param(name, marks=[no] if name in LARGE else []) for name in names]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory with a short path: ray's sockets are in it. It has a directory for temporary files, which processes are known by."""
    with tempfile.TemporaryDirectory(prefix="py-") as directory:
        place = Path(directory)
        (place / "t").mkdir()
        try:
            yield place
        finally:
            kill_all(place)


def possible_leftovers() -> set[str]:
    """Return the shared files of the kinds that examples make: arrays and drafts without a chosen name, multiprocessing's semaphores."""
    return {file for file in shared_files() if re.match(r"\.ndshm-|ndshm-[0-9a-f]{16}$|sem\.mp-", file)}


@pytest.fixture(autouse=True)
def no_new_shared_files() -> Iterator[None]:
    """Fail if a test leaves a shared file. Files of other programs that run meanwhile have a minute to disappear."""
    before = possible_leftovers()
    yield
    new = possible_leftovers() - before
    try:
        wait_until(lambda: not new & shared_files(), lambda: f"left in /dev/shm: {new & shared_files()}")
    finally:
        ndshm.gc()


def wait_until(met: Callable[[], Any], why: Callable[[], str]) -> None:
    end = time.monotonic() + 60
    while not met():
        assert time.monotonic() < end, why()
        time.sleep(0.01)


@contextmanager
def started(place: Path, name: str, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
    """Start an example. What it prints is in the file `log`."""
    environment = {**os.environ, "TMPDIR": f"{place}/t", "HOME": str(place), "NDSHM_MANAGER": "off", "RAY_USAGE_STATS_ENABLED": "0"}
    command = [sys.executable, EXAMPLES / f"{name}.py", *map(str, arguments)]
    with (place / "log").open("wb") as log, subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT) as program:
        try:
            yield program
        except BaseException:
            program.kill()
            print((place / "log").read_text())
            raise


def finish(program: subprocess.Popen[bytes], place: Path) -> str:
    """Wait for the end of an example, and return what it printed."""
    status = program.wait(120)
    text = (place / "log").read_text()
    assert status == 0, text
    assert "Outlives" not in text and "TransferWarning" not in text, text
    return text


@pytest.mark.parametrize("name", programs(*sorted(path.stem for path in EXAMPLES.glob("*.py"))))
def test_example_runs_and_leaves_nothing(place: Path, name: str) -> None:
    with started(place, name) as program:
        print(finish(program, place))
    assert not os.listdir(place / "t")
    wait_until(lambda: not processes(place), lambda: f"{processes(place)} still run")


def test_every_example_is_listed() -> None:
    listed = re.findall(r"^\| \[(\w+)\]\(\1\.py\)", (EXAMPLES / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(path.stem for path in EXAMPLES.glob("*.py"))


@pytest.mark.parametrize("name", programs("dask_cluster", "ray_cluster"))
def test_part_of_a_killed_worker_is_done_by_another(place: Path, name: str) -> None:
    x = volume(place)
    # Each part's download waits for its last chunk.
    with serving(place, lambda path: path.endswith("/1/1")) as server:
        with started(place, name, f"{server.url}/source", place / "target", place / "markers") as program:
            wait_until(lambda: len(stalled(server)) == len(downloading(place)) == 3, lambda: "three workers did not begin")
            victim = downloading(place)[0]
            os.kill(victim, signal.SIGKILL)
            wait_until(lambda: victim not in processes(place), lambda: "the worker did not die")
            server.release.set()
            assert f"{PARTS} of {PARTS} parts" in finish(program, place)
        check(place, x)
        again = [slab(path) for path, count in Counter(chunks(server)).items() if count > 1]
        assert len(again) in range(1, 5) and len(set(again)) == 1, "only the part of the killed worker was downloaded twice"


@pytest.mark.parametrize("name", programs("dask_cluster", "ray_cluster"))
def test_killed_cluster_continues_with_the_missing_parts(place: Path, name: str) -> None:
    x = volume(place)
    # Two of the workers wait, while the third one does the other parts.
    with serving(place, lambda path: re.search(r"/c/[25]/1/1$", path) is not None) as server:
        urls = f"{server.url}/source", place / "target", place / "markers"
        with started(place, name, *urls):
            wait_until(lambda: len(marked(place)) == 6 and len(stalled(server)) == 2, lambda: f"only {marked(place)} are done")
            killed = downloading(place)
            kill_all(place)
        assert marked(place) == [0, 1, 3, 4, 6, 7]
        assert len(killed) == 2
        server.release.set()
        asked = len(chunks(server))
        with started(place, name, *urls) as program:
            assert f"2 of {PARTS} parts" in finish(program, place)
        assert Counter(map(slab, chunks(server)[asked:])) == {2: 4, 5: 4}
        check(place, x)
        with started(place, name, *urls) as program:
            assert f"0 of {PARTS} parts" in finish(program, place)
        assert len(chunks(server)) == asked + 8


def volume(place: Path) -> Any:
    """Create the source of a cluster's work, and return its elements."""
    x = np.random.default_rng(3).integers(0, 256, SHAPE, "uint8")
    ndshm.upload(ndshm.create_volume(place / "source", SHAPE, CHUNK, x.dtype), x).result()
    return x


def check(place: Path, x: Any) -> None:
    """Check that all parts are done, right, and marked."""
    np.testing.assert_array_equal(ndshm.download(place / "target").result()[...], 255 - x)
    assert marked(place) == list(range(PARTS))


def marked(place: Path) -> list[int]:
    return sorted(int(path.name[5:10]) for path in place.glob(f"markers/part-?????-of-{PARTS:05}.json"))


def chunks(server: StallingServer) -> list[str]:
    return [path for path in server.asked if "/c/" in path]


def stalled(server: StallingServer) -> list[str]:
    """Return the requests for chunks that got no answer, before the server is released."""
    return [path for path in chunks(server) if server.stalls(path)]


def slab(path: str) -> int:
    """Return the part that a chunk is in."""
    return int(path.split("/")[-3])


def downloading(place: Path) -> list[int]:
    """Return the processes that have an array without a name, which they paint."""
    return [pid for pid in processes(place) if re.search(r" /dev/shm/#\d+ \(deleted\)$", maps(pid), re.MULTILINE)]


def maps(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/maps").read_text(encoding="utf-8")
    return ""


def processes(place: Path) -> list[int]:
    """Return the processes that an example has started, in whichever group and session."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"TMPDIR={place}/t".encode() in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return sorted(found)


def kill_all(place: Path) -> None:
    """Kill a whole cluster, but let the resource trackers of multiprocessing remove its semaphores."""
    end = time.monotonic() + 10
    while pids := processes(place):
        for pid in pids:
            with contextlib.suppress(OSError):
                is_tracker = b"resource_tracker" in Path("/proc", str(pid), "cmdline").read_bytes()
                if not is_tracker or time.monotonic() > end:
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
