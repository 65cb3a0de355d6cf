"""`ndshm.sharedmemory`, without CloudVolume. `python/tests-cloudvolume` compares it with CloudVolume's module."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ndshm
from ndshm import sharedmemory as shm

SPAWN = multiprocessing.get_context("spawn")
FORK = multiprocessing.get_context("fork")


def test_array_is_created_with_zeros_and_opened_again(name: str) -> None:
    handle, x = shm.ndarray((2, 3), "uint16", name)
    assert x.flags.f_contiguous and x.flags.writeable and not x.any()
    x[:] = 100
    handle.close()
    assert handle.closed
    _, y = shm.ndarray((2, 3), np.uint16, "/" + name)
    assert (y == 100).all()
    assert ndshm.open(name).shape == (2, 3)
    assert os.path.getsize(f"{shm.SHM_DIRECTORY}{name}") == 12
    assert shm.unlink(name) and not shm.unlink(name)


def test_array_of_another_shape_with_as_many_bytes_is_the_same_memory(name: str) -> None:
    _, x = shm.ndarray((2, 6), "u1", name)
    _, y = shm.ndarray((3,), "i4", name)
    y[:] = -1
    assert (x == 255).all()


@pytest.mark.parametrize(("before", "after"), [(100, 10), (10, 100)])
def test_array_of_another_size_replaces_the_file_and_keeps_its_beginning(name: str, before: int, after: int) -> None:
    _, x = shm.ndarray((before,), "u1", name)
    x[:] = 7
    _, y = shm.ndarray((after,), "u1", name)
    assert (y[:10] == 7).all() and not y[10:].any()
    y[:] = 1
    assert (x == 7).all()
    assert os.path.getsize(f"/dev/shm/{name}") == after


def test_file_of_another_size_is_replaced_by_zeros(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    _, x = shm.ndarray_fs((100,), "u1", path, None)
    x[:] = 7
    for size in (10, 1000):
        _, y = shm.ndarray_fs((size,), "u1", path, threading.Lock())
        assert not y.any() and os.path.getsize(path) == size
    assert (x == 7).all()


def test_file_is_found_behind_a_link_and_has_the_permissions_of_the_umask(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "file")
    _, x = shm.ndarray_fs((4,), "u1", str(tmp_path / "link"), None)
    x[:] = 1
    umask = os.umask(0o027)
    try:
        shm.allocate_shm_file(str(tmp_path / "other"), 8, 1, False)
    finally:
        os.umask(umask)
    assert (tmp_path / "other").stat().st_mode & 0o777 == 0o640
    assert (tmp_path / "link").is_symlink() and (tmp_path / "file").stat().st_size == 4


def test_array_outlives_its_handle(name: str) -> None:
    handle, x = shm.ndarray((10,), "u1", name)
    with handle as same:
        assert same is handle
    x[:] = 3
    del handle
    assert x.sum() == 30


@pytest.mark.parametrize("end", ["handle.close()", "handle.__exit__(None, None, None)", "refused(handle.resize, 1)"])
def test_array_that_was_made_of_the_handle_outlives_its_end(name: str, end: str) -> None:
    # In a process of its own, because it ended by SIGSEGV.
    program = f"""
        import numpy, ndshm, sys
        from ndshm import sharedmemory as shm
        def refused(call, *arguments):
            try:
                call(*arguments)
            except ndshm.Unsupported:
                return
            raise AssertionError
        handle, array = shm.ndarray((1 << 20,), "u1", sys.argv[1])
        x = numpy.ndarray((1 << 20,), "u1", buffer=handle)
        del array
        {end}
        x[:] = 7
        del handle
        print(x.sum() == 7 << 20)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program), name], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_memory_is_detached_when_the_handle_is_deallocated(name: str) -> None:
    def is_mapped() -> bool:
        return name in Path("/proc/self/maps").read_text(encoding="utf-8")

    handle, x = shm.ndarray((10,), "u1", name)
    handle.close()
    del x
    assert handle.closed and is_mapped()
    del handle
    assert not is_mapped()


def test_readonly_array_is_never_created_and_never_changed(name: str) -> None:
    with pytest.raises(shm.SharedMemoryReadError, match="does not exist"):
        shm.ndarray((10,), "u1", name, readonly=True)
    _, x = shm.ndarray((10,), "u1", name)
    with pytest.raises(shm.SharedMemoryReadError, match="10 bytes, and not 11"):
        shm.ndarray((11,), "u1", name, readonly=True)
    _, y = shm.ndarray((10,), "u1", name, readonly=True)
    assert not y.flags.writeable
    x[3] = 8
    assert y[3] == 8
    y.setflags(write=True)
    y[4] = 9
    assert x[4] == 0


def test_read_error_is_pickled(name: str) -> None:
    with pytest.raises(shm.SharedMemoryReadError) as raised:
        shm.ndarray((10,), "u1", name, readonly=True)
    assert isinstance(pickle.loads(pickle.dumps(raised.value)), shm.SharedMemoryReadError)
    assert isinstance(raised.value, ndshm.NdshmError)


@pytest.mark.parametrize("shape", [(0,), (3, 0, 2)])
def test_array_without_elements(name: str, shape: tuple[int, ...]) -> None:
    for _ in range(2):
        handle, x = shm.ndarray(shape, "u2", name)
        assert x.shape == shape and not handle.closed
        handle.close()
    _, y = shm.ndarray(shape, "u2", name, readonly=True)
    assert y.size == 0 and os.path.getsize(f"/dev/shm/{name}") == 0


def test_array_without_room_is_refused_and_the_old_one_stays(name: str) -> None:
    _, x = shm.ndarray((10,), "u1", name)
    x[:] = 5
    for size in (1 << 50, 1 << 62):
        with pytest.raises(shm.SharedMemoryAllocationError) as raised:
            shm.ndarray((size,), "u1", name)
        assert isinstance(raised.value, ndshm.NoSpace)
    assert shm.ndarray((10,), "u1", name, readonly=True)[1].sum() == 50


@pytest.mark.parametrize("dtype", [">i4", "S5", [("a", "u1"), ("b", "<f8")], "complex128", "bool"])
def test_every_dtype_of_numpy_is_good(name: str, dtype: Any) -> None:
    _, x = shm.ndarray((3,), dtype, name)
    x[1] = np.ones((), dtype)
    _, y = shm.ndarray((3,), dtype, name)
    assert y.dtype == np.dtype(dtype) and y[1] == np.ones((), dtype) and y[0] != y[1]


def test_more_arguments_go_to_numpy(name: str) -> None:
    _, x = shm.ndarray((4, 4), "i4", name, order="C", strides=(4, 16))
    assert x.strides == (4, 16)


@pytest.mark.parametrize("location", ["", "a/b", ".ndshm-x"])
def test_name_that_is_not_valid_is_refused(location: str) -> None:
    with pytest.raises((ndshm.InvalidArgument, ndshm.NotAnArray, OSError)):
        shm.ndarray((4,), "u1", location)


@pytest.fixture
def both(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Directories for shared and emulated arrays in a directory that has a file beside them, which no name may reach."""
    for constant, directory in (("SHM_DIRECTORY", "shm"), ("EMULATED_SHM_DIRECTORY", "emulated")):
        (tmp_path / directory).mkdir(mode=0o700)
        monkeypatch.setattr(shm, constant, f"{tmp_path / directory}/")
    (tmp_path / "file").write_bytes(b"beside")
    return tmp_path


def open_emulated(location: str, readonly: bool = False) -> object:
    return shm.ndarray_fs((6,), "u1", location, None, readonly, emulate_shm=True)


def open_shared(location: str, readonly: bool = False) -> object:
    return shm.ndarray_shm((6,), "u1", location, readonly)


def allocate(location: str, readonly: bool = False) -> object:
    return shm.allocate_shm_file(os.path.join(shm.SHM_DIRECTORY, location), 6, 1, readonly)


@pytest.mark.parametrize("location", ["../file", "../new", "//{}/file", "{}/file", "..", ".", "", ".ndshm-ledger-x", "a\0b", "x" * 256])
@pytest.mark.parametrize("entry", [open_shared, open_emulated, shm.unlink_shm, shm.unlink_fs, shm.place])
def test_name_cannot_lead_out_of_its_directory(both: Path, entry: Any, location: str) -> None:
    with pytest.raises((ndshm.InvalidArgument, ndshm.NotAnArray)):
        entry(location.format(both))
    assert sorted(os.listdir(both)) == ["emulated", "file", "shm"]
    assert (both / "file").read_bytes() == b"beside" and not os.listdir(both / "shm") and not os.listdir(both / "emulated")


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("entry", [open_shared, open_emulated])
def test_planted_link_is_refused_and_what_it_leads_to_stays(both: Path, entry: Any, readonly: bool) -> None:
    for directory in ("shm", "emulated"):
        (both / directory / "link").symlink_to(both / "file")
        (both / directory / "dangling").symlink_to(both / "new")
    for location in ("link", "dangling"):
        with pytest.raises(ndshm.NotAnArray, match="not a regular file"):
            entry(location, readonly)
    assert (both / "file").read_bytes() == b"beside" and not (both / "new").exists()


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("entry", [open_shared, open_emulated, allocate])
def test_what_is_not_a_regular_file_is_refused_at_once(both: Path, entry: Any, readonly: bool) -> None:
    for directory in ("shm", "emulated"):
        os.mkfifo(both / directory / "pipe")
        (both / directory / "folder").mkdir()
    for location in ("pipe", "folder"):
        with pytest.raises(ndshm.NotAnArray, match="not a regular file"):
            entry(location, readonly)


@pytest.mark.parametrize("unlink", [shm.unlink_shm, shm.unlink_fs])
def test_only_regular_files_are_unlinked(both: Path, unlink: Any) -> None:
    for directory in ("shm", "emulated"):
        (both / directory / "folder").mkdir()
        (both / directory / "link").symlink_to(both / "file")
    for location in ("folder", "link"):
        with pytest.raises(ndshm.NotAnArray, match="not a regular file"):
            unlink(location)


def test_emulated_directory_of_other_users_is_refused(both: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (both / "link").symlink_to(both / "emulated")
    monkeypatch.setattr(shm, "EMULATED_SHM_DIRECTORY", str(both / "link"))
    with pytest.raises(ndshm.PermissionDenied, match="EMULATED_SHM_DIRECTORY"):
        open_emulated("array")
    (both / "open").mkdir()
    (both / "open").chmod(0o1777)
    monkeypatch.setattr(shm, "EMULATED_SHM_DIRECTORY", str(both / "open"))
    with pytest.raises(ndshm.PermissionDenied, match="EMULATED_SHM_DIRECTORY"):
        open_emulated("array")
    assert not os.listdir(both / "emulated") and not os.listdir(both / "open")


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: only root can make a link of another user")
def test_path_that_is_a_link_of_another_user_is_refused(both: Path) -> None:
    (both / "theirs").symlink_to(both / "file")
    os.lchown(both / "theirs", 12345, 12345)
    (both / "ours").symlink_to("theirs")
    for link in ("theirs", "ours"):
        for readonly in (False, True):
            with pytest.raises(ndshm.PermissionDenied, match="link of another user"):
                shm.ndarray_fs((3,), "u1", str(both / link), None, readonly)
    with pytest.raises(ndshm.PermissionDenied):
        shm.allocate_shm_file(str(both / "theirs"), 3, 1, False)
    assert (both / "file").read_bytes() == b"beside"


def test_links_in_a_circle_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(ndshm.InvalidArgument, match="links"):
        shm.ndarray_fs((3,), "u1", str(tmp_path / "a"), None)


def test_file_larger_than_the_memory_is_opened_readonly(tmp_path: Path) -> None:
    path, size = str(tmp_path / "huge"), 1 << 43
    with open(path, "wb") as file:
        file.truncate(size)
    _, x = shm.ndarray_fs((size,), "u1", path, None, readonly=True)
    assert x[-1] == 0


def test_missing_directory_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="missing"):
        shm.ndarray_fs((4,), "u1", str(tmp_path / "missing" / "file"), None)


@pytest.mark.filterwarnings("ignore::ndshm.sharedmemory.EmulatedMemoryWarning")  # the disk of this machine may be almost full
def test_emulated_arrays_are_files_of_the_emulated_directory(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    directory = tmp_path / "emulated"
    monkeypatch.setattr(shm, "EMULATED_SHM_DIRECTORY", str(directory))
    monkeypatch.setattr(shm, "EMULATE_SHM", True)
    _, x = shm.ndarray((4,), "u1", name, lock=threading.Lock())
    x[:] = 2
    assert (directory / name).read_bytes() == bytes([2] * 4)
    assert (directory / name).stat().st_mode & 0o777 == 0o600
    assert shm.unlink(name) and not shm.unlink(name) and not shm.unlink_shm(name)


def test_environment_chooses_emulation(tmp_path: Path) -> None:
    program = "from ndshm import sharedmemory as s; print(s.EMULATE_SHM, s.PLATFORM_SHM_DIRECTORY)"
    environment = {**os.environ, "EMULATE_SHM": "1", "NDSHM_EMULATED_DIR": str(tmp_path / "here")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", str(tmp_path / "here")]


def private_mounts() -> list[str] | None:
    """Return the command that gives a process mounts of its own, as root or as root of a user namespace, if one works."""
    for way in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
        if subprocess.run([*way, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True).returncode == 0:
            return way
    return None


def on_a_small_disk(program: str) -> str:
    """Run a program with its emulated directory on a disk of 8 MiB, and return what it printed."""
    mounts = private_mounts()
    if mounts is None:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("NOT RUN: private mounts cannot be had")
    script = 'mount -t tmpfs -o size=8m none /mnt && exec "$0" -c "$1"'
    prelude = "import os; os.environ.update(NDSHM_EMULATED_DIR='/mnt/emulated', EMULATE_SHM='1')\nfrom ndshm import sharedmemory as shm\n"
    command = [*mounts, "sh", "-e", "-c", script, sys.executable, prelude + textwrap.dedent(program)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_warning_is_given_when_emulated_arrays_have_almost_filled_the_disk() -> None:
    program = """
        import warnings
        for number in range(8):
            with warnings.catch_warnings(record=True) as given:
                warnings.simplefilter("always")
                shm.ndarray((1 << 20,), "u1", f"array-{number}")
            print([entry.category.__name__ for entry in given])
    """
    assert on_a_small_disk(program).splitlines() == ["[]"] * 7 + ["['EmulatedMemoryWarning']"]


def test_emulated_array_that_does_not_fit_is_refused_and_the_disk_is_not_filled() -> None:
    program = """
        try:
            shm.ndarray((9 << 20,), "u1", "array")
        except shm.SharedMemoryAllocationError:
            print(os.listdir("/mnt/emulated"), os.statvfs("/mnt").f_bfree > 2000)
    """
    assert on_a_small_disk(program).split("\n")[0] == "[] True"


def count(name: str, slot: int, size: int, start: Any) -> None:
    start.wait()
    _, x = shm.ndarray((size,), "u1", name)
    x[slot] = 1
    start.wait()  # keeps the array attached until all have it


@pytest.mark.parametrize("old", [None, 0, 100, 10_000])
def test_processes_that_replace_an_array_at_the_same_time_get_the_same_one(name: str, old: int | None) -> None:
    processes = 8
    for _ in range(10):
        if old is not None:
            shm.ndarray((old,), "u1", name)
        barrier = FORK.Barrier(processes)
        children = [FORK.Process(target=count, args=(name, slot, 1000, barrier)) for slot in range(processes)]
        for child in children:
            child.start()
        for child in children:
            child.join()
            assert child.exitcode == 0
        assert shm.ndarray((1000,), "u1", name, readonly=True)[1].sum() == processes
        shm.unlink(name)


def test_file_that_another_program_has_created_but_not_sized_yet_is_shared(name: str) -> None:
    path = f"/dev/shm/{name}"
    file = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)  # the first of two steps
    _, x = shm.ndarray((100,), "u1", name)
    os.ftruncate(file, 100)  # the second
    x[:] = 6
    assert os.pread(file, 100, 0) == bytes([6] * 100)
    os.close(file)


#: Kills processes that replace an array, and prints what they leave. A program, because it has the directory for itself.
KILLS = """
import multiprocessing, os, random, signal, time
import ndshm
from ndshm import sharedmemory as shm

SIZES = (1 << 20, 3 << 20, 1 << 16)

def create_and_replace():
    while True:
        for size in SIZES:
            handle, x = shm.ndarray((size,), "u1", "array")
            x[:] = 1
            handle.close()

rng, path = random.Random(1), os.path.join(shm.PLATFORM_SHM_DIRECTORY, "array")
for _ in range(20):
    _, x = shm.ndarray((1000,), "u1", "array")
    x[:] = 2
    child = multiprocessing.get_context("fork").Process(target=create_and_replace)
    child.start()
    while os.path.getsize(path) == 1000:
        time.sleep(0.001)
    time.sleep(rng.uniform(0, 0.02))
    child.kill()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert os.path.getsize(path) in SIZES
    assert x.sum() == 2000
for file in os.listdir(shm.PLATFORM_SHM_DIRECTORY):
    if file.startswith(".ndshm-draft-"):  # is kept for a minute, in case that its creator is just taking the lease
        os.utime(os.path.join(shm.PLATFORM_SHM_DIRECTORY, file), (0, 0))
ndshm.gc()
print(os.listdir(shm.PLATFORM_SHM_DIRECTORY))
"""


def test_killed_processes_leave_a_whole_array(tmp_path: Path) -> None:
    environment = {**os.environ, "EMULATE_SHM": "1", "NDSHM_EMULATED_DIR": str(tmp_path / "emulated")}
    done = subprocess.run([sys.executable, "-c", KILLS], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "['array']\n"), done.stderr


def read_back(name: str, total: int) -> None:
    handle, x = shm.ndarray((100,), "u4", name, readonly=True)
    assert x.sum() == total
    handle.close()


def test_spawned_process_reads_the_array(name: str) -> None:
    _, x = shm.ndarray((100,), "u4", name)
    x[:] = np.arange(100)
    child = SPAWN.Process(target=read_back, args=(name, int(x.sum())))
    child.start()
    child.join()
    assert child.exitcode == 0
