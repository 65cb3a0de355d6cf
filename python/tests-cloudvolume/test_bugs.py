"""Faults of CloudVolume 12.15.2. Each is shown to exist, and to be gone with this package.

`docs/guide/cloudvolume.md` has the same table, and a test compares them.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import cloudvolume.sharedmemory as shm
import numpy as np
import pytest
import zarr
from cloudvolume import Bbox, CloudVolume
from outcomes import Killed, Raised, outcome
from volumes import CHUNK, OFFSET, elements, n5, precomputed, sharded

import ndshm.cloudvolume

PAGE = Path(__file__).parents[2] / "docs/guide/cloudvolume.md"


class Bug(NamedTuple):
    title: str
    """What stands in the table."""
    fixed_by: str
    """"module" or "methods"."""
    show: Callable[[str, Path], Any]
    """Gets a name for an array and a folder."""
    original: Any
    ours: Any


BUGS: list[Bug] = []


def bug(title: str, fixed_by: str, original: Any, ours: Any) -> Callable[[Callable[[str, Path], Any]], None]:
    return lambda show: BUGS.append(Bug(title, fixed_by, show, original, ours))


def in_child(function: Callable[[], Any]) -> None:
    """Run a function in another process, and wait for its end."""
    child = os.fork()
    if child == 0:
        try:
            function()
        finally:
            os._exit(0)
    os.waitpid(child, 0)


@bug("Opening an array with a smaller shape ends the processes that have it attached (SIGBUS)", "module", Killed(signal.SIGBUS), 1)
def smaller_shape(name: str, folder: Path) -> int:
    _, x = shm.ndarray((1 << 20,), "u1", name)
    x[:] = 1
    in_child(lambda: shm.ndarray((10,), "u1", name))
    return int(x[-1])


@bug("Opening a file with a smaller shape overwrites its elements with 0", "module", 0, 7)
def smaller_file(name: str, folder: Path) -> int:
    path = str(folder / "file")
    _, x = shm.ndarray_fs((100,), "u1", path, None)
    x[:] = 7
    in_child(lambda: shm.ndarray_fs((10,), "u1", path, None))
    return int(x[0])


@bug("Using an array after its handle was closed ends the process (SIGSEGV)", "module", Killed(signal.SIGSEGV), 3)
def closed_handle(name: str, folder: Path) -> int:
    handle, x = shm.ndarray((1 << 20,), "u1", name)
    x[:] = 3
    handle.close()
    return int(x[-1])


@bug("An array without elements is a ValueError", "module", Raised("ValueError"), (0, 5))
def empty(name: str, folder: Path) -> Any:
    return shm.ndarray((0, 5), "u2", name)[1].shape


@bug("An array that was opened with `readonly=True` can be written: `setflags` makes it writable", "module", 9, 0)
def readonly(name: str, folder: Path) -> int:
    _, x = shm.ndarray((10,), "u1", name)
    _, y = shm.ndarray((10,), "u1", name, readonly=True)
    y.setflags(write=True)
    y[0] = 9
    return int(x[0])


# Transfers.


def raw(folder: Path, **how: Any) -> Any:
    return precomputed(folder / "raw", elements(), **how)


def everything(vol: Any) -> Any:
    return CloudVolume(vol.cloudpath, bounded=False, fill_missing=True)[vol.bounds]


@bug("A parallel download in C order gives wrong elements", "methods", False, True)
def parallel_c(name: str, folder: Path) -> bool:
    vol = raw(folder)
    expected = np.array(vol[:])
    if is_installed():
        found = ndshm.cloudvolume.download(vol, vol.bounds, name, "C", workers=2)
    else:
        found = vol.image.download(vol.bounds, 0, parallel=2, location=name, retain=True, use_shared_memory=True, order="C")
    return bool((found == expected).all())


@bug("A download in C order returns a copy: writing to it does not change the shared array", "methods", False, True)
def copied_c(name: str, folder: Path) -> bool:
    vol = raw(folder)
    if is_installed():
        found = ndshm.cloudvolume.download(vol, vol.bounds, name, "C")
    else:
        found = vol.image.download(vol.bounds, 0, location=name, retain=True, use_shared_memory=True, order="C")
    found[...] = 77
    _, x = shm.ndarray(found.shape, "u1", name, order="C", readonly=True)
    return bool((x == 77).all())


@bug("A parallel `download_to_file` is an UnboundLocalError", "methods", Raised("UnboundLocalError"), True)
def parallel_file(name: str, folder: Path) -> bool:
    vol = raw(folder, parallel=2)
    found = vol.download_to_file(str(folder / "file"), vol.bounds)
    return bool((found == elements()).all())


@bug("A parallel `upload_from_file` is a ValueError", "methods", Raised("ValueError"), True)
def parallel_upload(name: str, folder: Path) -> bool:
    vol = raw(folder, parallel=2)
    x = np.asfortranarray(elements() + 1)
    (folder / "file").write_bytes(x.tobytes("F"))
    vol.upload_from_file(str(folder / "file"), vol.bounds)
    return bool((everything(vol) == x).all())


def with_a_hole(folder: Path, **how: Any) -> Any:
    """A volume of which the second chunk along x is not stored."""
    vol = raw(folder, fill_missing=True, **how)
    vol.delete(Bbox(second(), np.add(second(), CHUNK)))
    return vol


def second() -> Any:
    return np.add(OFFSET, (CHUNK[0], 0, 0))


@bug("`background_color` is ignored: chunks that are not stored become 0", "methods", 0, 5)
def background(name: str, folder: Path) -> int:
    vol = with_a_hole(folder, background_color=5)
    return int(vol.download_to_shared_memory(vol.bounds, name)[CHUNK[0], 0, 0, 0])


@bug("In a parallel download, `background_color` is written to the wrong places", "methods", 0, 5)
def parallel_background(name: str, folder: Path) -> int:
    vol = with_a_hole(folder, background_color=5, parallel=2)
    corner = np.add(OFFSET, (CHUNK[0], 0, 0))
    region = Bbox(corner, vol.bounds.maxpt)
    return int(vol.download_to_shared_memory(region, name)[0, 0, 0, 0])


@bug("With `fill_missing`, an array that exists keeps its old elements where chunks are not stored", "methods", 1, 0)
def stale(name: str, folder: Path) -> int:
    vol = with_a_hole(folder)
    _, x = shm.ndarray((*vol.bounds.size3(), 1), "u1", name)
    x[...] = 1
    return int(vol.download_to_shared_memory(vol.bounds, name)[CHUNK[0], 0, 0, 0])


@bug("A download that fails leaves its array behind", "methods", True, False)
def left_behind(name: str, folder: Path) -> bool:
    vol = with_a_hole(folder)
    vol.fill_missing = False
    try:
        vol.download_to_shared_memory(vol.bounds, name)
    except Exception as error:
        assert type(error).__name__ == "EmptyVolumeException"
    return os.path.exists(f"/dev/shm/{name}")


@bug("A volume with shards is not downloaded into the shared array or the file", "methods", False, True)
def shards(name: str, folder: Path) -> bool:
    vol = sharded(folder / "sharded", elements(shape=(32, 32, 32)))
    vol.download_to_shared_memory(vol.bounds, name)
    return os.path.exists(f"/dev/shm/{name}")


@bug("A region of one element is not downloaded into the shared array or the file", "methods", False, True)
def single(name: str, folder: Path) -> bool:
    vol = raw(folder)
    vol.download_to_shared_memory(Bbox(OFFSET, np.add(OFFSET, 1)), name)
    return os.path.exists(f"/dev/shm/{name}")


@bug("A region outside of the volume is not downloaded into the shared array or the file", "methods", False, True)
def outside(name: str, folder: Path) -> bool:
    vol = raw(folder, bounded=False, fill_missing=True)
    vol.download_to_shared_memory(Bbox((500, 500, 500), (510, 510, 510)), name)
    return os.path.exists(f"/dev/shm/{name}")


@bug("`autocrop` crops to the bounds of the volume's own scale, and not to those of `mip`", "methods", 10, 15)
def other_mip(name: str, folder: Path) -> int:
    vol = precomputed(folder / "raw", elements(), autocrop=True, bounded=False)
    # Along x, scale 0 is 10 to 50, and scale 1 is 5 to 25.
    return int(vol.download_to_shared_memory(np.s_[0:20, 0:10, 3:10], name, mip=1).shape[0])


@bug("With `EMULATE_SHM`, worker processes write to real shared memory, and the result is 0", "methods", False, True)
def emulated(name: str, folder: Path) -> bool:
    vol = raw(folder, parallel=2)
    shm.EMULATE_SHM = True
    try:
        return bool((vol.download_to_shared_memory(vol.bounds, name) == elements()).all())
    finally:
        shm.unlink(name)


@bug("The result has no handle: `close()` does nothing", "methods", False, True)
def handle(name: str, folder: Path) -> bool:
    vol = raw(folder)
    return vol.download_to_shared_memory(vol.bounds, name).handle is not None


@bug("JPEG and PNG of three channels are read with mixed channels", "methods", [False, False], [True, True])
def pictures(name: str, folder: Path) -> list[bool]:
    x = np.zeros((32, 32, 16, 3), "u1")
    x[...] = (50, 100, 200)
    right = []
    for encoding in ("jpeg", "png"):
        vol = precomputed(folder / encoding, x, encoding=encoding)
        found = vol.download_to_shared_memory(vol.bounds, name).astype(int)
        right.append(bool((abs(found - x) < 20).all()))
    return right


@bug("One element of several channels has the channels along x", "methods", (3, 1, 1, 1), (1, 1, 1, 3))
def one_of_channels(name: str, folder: Path) -> Any:
    vol = precomputed(folder / "raw", elements(channels=3))
    return vol.download_to_shared_memory(Bbox(OFFSET, np.add(OFFSET, 1)), name).shape


@bug("Zarr volumes: a TypeError", "methods", Raised("TypeError"), True)
def of_zarr(name: str, folder: Path) -> bool:
    x = elements()[..., 0]
    zarr.create_array(folder / "volume.zarr", data=x.T, chunks=CHUNK[::-1], zarr_format=2)
    vol = CloudVolume(f"zarr://file://{folder}/volume.zarr")
    found = vol.download_to_shared_memory(vol.bounds, name)
    return bool((found[..., 0] == x).all())


@bug("N5 volumes: a TypeError", "methods", Raised("TypeError"), True)
def of_n5(name: str, folder: Path) -> bool:
    vol = n5(folder / "n5", elements("uint16"))
    return bool((vol.download_to_shared_memory(vol.bounds, name) == elements("uint16")).all())


def is_installed() -> bool:
    return bool(shm.ndarray.__module__ == "ndshm.sharedmemory")


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.show.__name__)
def test_bug_exists_and_is_gone(bug: Bug, name: str, tmp_path: Path) -> None:
    ways = {"original": bug.original, "installed": bug.ours}
    if bug.fixed_by == "module":
        ways["module"] = bug.ours
    for way, expected in ways.items():
        folder = tmp_path / way
        folder.mkdir()
        assert outcome(way, bug.show, name, folder) == expected, way
        Path("/dev/shm", name).unlink(missing_ok=True)


def test_page_has_the_same_table() -> None:
    rows = re.findall(r"^\| (.+?) \| (module|methods) \|$", PAGE.read_text(), re.MULTILINE)
    assert rows == [(bug.title, bug.fixed_by) for bug in BUGS] + [FULL]


# The fault that needs a small `/dev/shm`.
FULL = ("Writing to an array for which there is no memory ends the process (SIGBUS)", "module")


def private_mounts() -> list[str] | None:
    """Return the command that gives a process mounts of its own, as root or as root of a user namespace, if one works."""
    for way in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
        if subprocess.run([*way, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode == 0:
            return way
    return None


def in_small_memory(module: str) -> subprocess.CompletedProcess[str]:
    """Create and fill an array of 4 MiB in a shared memory of 1 MiB."""
    mounts = private_mounts()
    if mounts is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("NOT RUN: private mounts cannot be had")
    program = textwrap.dedent(
        f"""
        import {module} as shm
        try:
            _, x = shm.ndarray((1 << 22,), "u1", "small")
        except shm.SharedMemoryAllocationError:
            print("refused")
        else:
            x[:] = 1
        """
    )
    script = 'mount -t tmpfs -o size=1m none /dev/shm && exec "$0" -c "$1"'
    return subprocess.run([*mounts, "sh", "-e", "-c", script, sys.executable, program], capture_output=True, text=True)


def test_array_that_does_not_fit_is_refused_before_it_is_written() -> None:
    done = in_small_memory("cloudvolume.sharedmemory")
    assert done.returncode == -signal.SIGBUS, done.stderr
    done = in_small_memory("ndshm.sharedmemory")
    assert (done.returncode, done.stdout) == (0, "refused\n"), done.stderr
