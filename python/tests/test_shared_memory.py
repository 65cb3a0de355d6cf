"""`ndshm.SharedMemory` does what the standard library's class does, without a resource tracker."""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import inspect
import multiprocessing
import multiprocessing.shared_memory
import os
import pickle
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ndshm
from ndshm import _shared_memory

METHODS = ["fork", "spawn", "forkserver"]

Standard = multiprocessing.shared_memory.SharedMemory


def run(program: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and check that it succeeds and prints no warning."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done


def buffer(block: ndshm.SharedMemory) -> memoryview:
    assert block.buf is not None
    return block.buf


def number_of(name: str) -> int:
    """Return the file's number. A mapping is known by it even if the file had another name, or none, when it was mapped."""
    return os.stat(f"/dev/shm/{name}").st_ino


def is_mapped(number: int) -> bool:
    return any(int(line.split()[4]) == number for line in Path("/proc/self/maps").read_text().splitlines())


def write(block: ndshm.SharedMemory, data: bytes) -> None:
    buffer(block)[: len(data)] = data
    block.close()


def write_by_name(name: str, data: bytes) -> None:
    write(ndshm.SharedMemory(name), data)


@pytest.mark.skipif(importlib.util.find_spec("test.support") is None, reason="this Python was installed without its tests")
@pytest.mark.parametrize("method", METHODS)
def test_cases_of_cpython_pass(method: str) -> None:
    script = Path(__file__).with_name("cpython_shared_memory.py")
    done = subprocess.run([sys.executable, script, method], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    passed, _, cases = done.stdout.rpartition("passed: ")[2].strip().partition(" of ")
    assert passed == cases and int(cases) >= 13, done.stdout


def test_parameters_are_those_of_the_standard_class() -> None:
    ours = inspect.signature(ndshm.SharedMemory).parameters
    theirs = inspect.signature(Standard).parameters
    for name, parameter in theirs.items():
        assert (ours[name].default, ours[name].kind) == (parameter.default, parameter.kind)
    assert set(ours) - set(theirs) <= {"track"}, "Python 3.13 has it too"
    public = {name for name in dir(Standard) if not name.startswith("_")}
    assert {name for name in dir(ndshm.SharedMemory) if not name.startswith("_")} == public


def test_block_has_exactly_its_size(name: str) -> None:
    block = ndshm.SharedMemory(name, create=True, size=5000, track=True)
    assert (block.name, block.size, len(buffer(block))) == (name, 5000, 5000)
    assert repr(block) == f"SharedMemory({name!r}, size=5000)"
    assert os.stat(f"/dev/shm/{name}").st_size == 5000
    assert bytes(buffer(block)) == bytes(5000)
    same = ndshm.SharedMemory(name, size=10 * 5000, track=False)
    assert same.size == 5000, "the size is ignored"
    buffer(same)[4999] = 42
    assert buffer(block)[4999] == 42
    assert (buffer(block).format, buffer(block).readonly) == ("B", False)


@pytest.mark.parametrize("prefix", ["", "/"])
def test_name_is_the_one_that_was_given(name: str, prefix: str) -> None:
    theirs = Standard(prefix + name, create=True, size=1)
    reported = theirs.name
    theirs.close()
    theirs.unlink()
    block = ndshm.SharedMemory(prefix + name, create=True, size=1)
    assert block.name == reported == prefix + name
    assert os.path.exists(f"/dev/shm/{name}")
    assert pickle.loads(pickle.dumps(block)).name == reported
    block.unlink()
    assert not os.path.exists(f"/dev/shm/{name}")


def test_standard_module_chooses_the_name_if_it_is_loaded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    names = iter([f"/{name}", f"/{name}", f"/{name}-2"])
    monkeypatch.setattr("multiprocessing.shared_memory._make_filename", lambda: next(names))
    first, second = (ndshm.SharedMemory(create=True, size=1) for _ in range(2))
    assert (first.name, second.name) == (name, f"{name}-2")
    first.unlink()
    second.unlink()


def test_chosen_name_is_free(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "multiprocessing.shared_memory")
    first = ndshm.SharedMemory(create=True, size=1)
    assert re.fullmatch("psm_[0-9a-f]{8}", first.name)
    numbers = [bytes.fromhex(first.name[4:]), bytes.fromhex("00c0ffee")]
    monkeypatch.setattr(_shared_memory.os, "urandom", lambda count: numbers.pop(0))
    second = ndshm.SharedMemory(create=True, size=1)
    assert second.name == "psm_00c0ffee"
    first.unlink()
    second.unlink()


@pytest.mark.parametrize(
    "arguments",
    [
        {"create": True, "size": -1},
        {"size": -1},
        {"create": True, "size": 0},
        {"create": True},
        {"create": False},
        {"create": True, "size": 1.5},
        {"create": True, "size": "1"},
        {"name": 3, "create": True, "size": 1},
        {"name": 3},
    ],
)
def test_wrong_arguments_are_errors_of_the_same_class(arguments: dict[str, Any]) -> None:
    before = set(os.listdir("/dev/shm"))
    with pytest.raises((ValueError, TypeError)) as ours:
        ndshm.SharedMemory(**arguments)
    assert set(os.listdir("/dev/shm")) == before
    with pytest.raises((ValueError, TypeError)) as theirs:
        Standard(**arguments)
    assert isinstance(ours.value, theirs.type)
    for left in set(os.listdir("/dev/shm")) - before:
        os.unlink(f"/dev/shm/{left}")  # the standard class leaves the name when the size is not an integer


@pytest.mark.parametrize("bad", ["", "a/b", "..", "a\0b", "x" * 256, ".ndshm-draft-1"])
def test_invalid_name_is_refused(bad: str) -> None:
    for create in (True, False):
        with pytest.raises(ValueError) as caught:
            ndshm.SharedMemory(bad, create, 1)
        assert isinstance(caught.value, ndshm.NdshmError)


def test_missing_and_existing_names_are_errors_of_the_same_class(name: str) -> None:
    with pytest.raises(FileNotFoundError):
        ndshm.SharedMemory(name)
    block = ndshm.SharedMemory(name, create=True, size=10)
    for kind in (ndshm.SharedMemory, Standard):
        with pytest.raises(FileExistsError):
            kind(name, create=True, size=10)
    block.unlink()
    with pytest.raises(FileNotFoundError):
        block.unlink()
    with pytest.raises(FileNotFoundError):
        ndshm.SharedMemory(name)
    buffer(block)[0] = 1  # still attached


def test_file_without_bytes_is_refused_until_it_has_some(name: str) -> None:
    # What another process sees of the standard class between its two system calls.
    path = Path("/dev/shm", name)
    path.touch()
    with pytest.raises(ValueError, match="Try again later"):
        ndshm.SharedMemory(name)
    os.truncate(path, 7)
    assert ndshm.SharedMemory(name).size == 7


def test_counted_array_is_no_block() -> None:
    array = ndshm.share(np.arange(100))
    with pytest.raises(ValueError):
        ndshm.SharedMemory(array.name)
    assert array[99] == 99


def test_plain_array_is_a_block_of_its_elements(name: str) -> None:
    ndshm.from_array(name, np.arange(6, dtype="i2").reshape(2, 3))
    block = ndshm.SharedMemory(name)
    assert bytes(buffer(block)) == np.arange(6, dtype="i2").tobytes()
    buffer(block)[0] = 9
    assert ndshm.open(name)[0, 0] == 9


def test_standard_class_in_another_process_attaches_to_ours(name: str) -> None:
    block = ndshm.SharedMemory(name, create=True, size=5001)
    buffer(block)[:5] = b"howdy"
    program = """
import sys
from multiprocessing import resource_tracker, shared_memory
block = shared_memory.SharedMemory(sys.argv[1])
if sys.version_info < (3, 13):
    resource_tracker.unregister("/" + sys.argv[1], "shared_memory")  # it would remove the block
assert block.size == 5001 and bytes(block.buf[:5]) == b"howdy"
block.buf[5000] = 33
block.close()
"""
    run(program, name)
    assert buffer(block)[5000] == 33
    block.close()
    Standard(name).unlink()
    with pytest.raises(FileNotFoundError):
        block.unlink()


def test_ours_attaches_to_a_block_of_the_standard_class_in_another_process(name: str) -> None:
    program = """
import sys
from multiprocessing import shared_memory
block = shared_memory.SharedMemory(sys.argv[1], create=True, size=5001)
block.buf[:5] = b"howdy"
print("ready", flush=True)
sys.stdin.readline()
assert block.buf[5000] == 33
block.close()
try:
    block.unlink()
except FileNotFoundError:
    print("gone", flush=True)
    from multiprocessing import resource_tracker
    resource_tracker.unregister("/" + sys.argv[1], "shared_memory")
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None and child.stdin is not None and child.stderr is not None
        assert child.stdout.readline() == "ready\n"
        block = ndshm.SharedMemory(name)
        assert block.size == 5001 and bytes(buffer(block)[:5]) == b"howdy"
        buffer(block)[5000] = 33
        block.unlink()
        child.stdin.write("\n")
        child.stdin.close()
        assert child.stdout.read() == "gone\n"
        assert child.stderr.read() == ""
    assert buffer(block)[5000] == 33


@pytest.mark.parametrize("method", METHODS)
def test_block_is_sent_by_its_name(name: str, method: str) -> None:
    block = ndshm.SharedMemory(name, create=True, size=512)
    context = multiprocessing.get_context(method)
    for number, (target, argument) in enumerate(((write_by_name, name), (write, block))):
        process = context.Process(target=target, args=(argument, b"hello %d" % number))
        process.start()
        process.join()
        assert process.exitcode == 0
        assert bytes(buffer(block)[:7]) == b"hello %d" % number
    assert os.path.exists(f"/dev/shm/{name}"), "the end of a child removes nothing"


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_leads_to_the_same_memory(name: str, protocol: int) -> None:
    block = ndshm.SharedMemory(name, create=True, size=512)
    data = pickle.dumps(block, protocol)
    same = pickle.loads(data)
    assert type(same) is ndshm.SharedMemory and same.size == 512
    buffer(same)[:3] = b"new"
    assert bytes(buffer(block)[:3]) == b"new"
    block.unlink()
    with pytest.raises(FileNotFoundError):
        pickle.loads(data)


def test_no_resource_tracker_runs_and_the_name_stays(name: str) -> None:
    program = """
import sys, ndshm
block = ndshm.SharedMemory(sys.argv[1], create=True, size=100)
same = ndshm.SharedMemory(sys.argv[1])
other = ndshm.SharedMemory(create=True, size=100)
other.unlink()
assert not any("resource_tracker" in module for module in sys.modules), "not even imported"
same.buf[0] = 7
# It ends without close and unlink.
"""
    assert run(program, name).stdout == ""
    block = ndshm.SharedMemory(name)
    assert buffer(block)[0] == 7


def test_block_of_a_killed_process_stays(name: str) -> None:
    program = """
import os, signal, sys, ndshm
block = ndshm.SharedMemory(sys.argv[1], create=True, size=100)
block.buf[0] = 7
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", program, name], capture_output=True)
    assert (done.returncode, done.stderr) == (-signal.SIGKILL, b"")
    ndshm.gc()
    block = ndshm.SharedMemory(name)
    assert buffer(block)[0] == 7
    block.unlink()


def test_views_outlive_close_and_the_last_one_frees_the_memory(name: str) -> None:
    block = ndshm.SharedMemory(name, create=True, size=1 << 16)
    number = number_of(name)
    views: dict[str, Any] = {
        "ndarray": np.ndarray((1 << 16,), "u1", buffer=block.buf),
        "asarray": np.asarray(block.buf),
        "frombuffer": np.frombuffer(buffer(block), "u1"),
        "slice": buffer(block)[:],
        "cast": buffer(block).cast("b"),
        "ctypes": (ctypes.c_ubyte * 16).from_buffer(buffer(block)),
        "buf": block.buf,
    }
    block.close()
    assert block.buf is None
    block.close()
    assert (block.name, block.size) == (name, 1 << 16)
    block.unlink()
    for value, kind in enumerate(views):
        views[kind][8] = value
        assert [int(view[8]) for view in views.values()] == [value] * len(views)
    for kind in list(views):
        assert is_mapped(number)
        del views[kind]
        gc.collect()
    assert not is_mapped(number)


def test_array_of_a_dropped_block_is_valid(name: str) -> None:
    array = np.ndarray((10,), "u1", buffer=ndshm.SharedMemory(name, create=True, size=10).buf)
    number = number_of(name)
    gc.collect()
    array[:] = 3
    assert array.sum() == 30 and bytes(buffer(ndshm.SharedMemory(name))) == b"\3" * 10
    assert is_mapped(number)
    del array
    assert not is_mapped(number)


def test_dropped_block_is_detached(name: str) -> None:
    block = ndshm.SharedMemory(name, create=True, size=10)
    number = number_of(name)
    assert is_mapped(number)
    del block
    assert not is_mapped(number) and os.path.exists(f"/dev/shm/{name}")


def test_memory_is_reserved_or_an_error(name: str) -> None:
    size = 4 << 20
    theirs = Standard(name, create=True, size=size)
    path = f"/dev/shm/{name}"
    assert os.stat(path).st_blocks * 512 < size, "the standard class reserves nothing"
    ours = ndshm.SharedMemory(name)
    assert os.stat(path).st_blocks * 512 >= size
    ours.unlink()
    theirs.close()
    multiprocessing.resource_tracker.unregister("/" + name, "shared_memory")
    program = """
import resource, sys, ndshm
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
try:
    ndshm.SharedMemory(sys.argv[1], create=True, size=4 << 20)
except MemoryError as error:
    print(type(error).__name__)
"""
    assert run(program, name).stdout == "NoSpace\n"
    assert not os.path.exists(path)


def test_forked_child_uses_the_block_of_its_parent(name: str) -> None:
    block = ndshm.SharedMemory(name, create=True, size=10)
    pid = os.fork()
    if pid == 0:
        buffer(block)[0] = 8
        block.close()
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
    assert buffer(block)[0] == 8
    buffer(block)[1] = 9


def test_blocks_need_no_descriptors(name: str) -> None:
    program = """
import resource, sys, ndshm
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
first = ndshm.SharedMemory(sys.argv[1], create=True, size=10)
blocks = [ndshm.SharedMemory(sys.argv[1]) for _ in range(1000)]
blocks[-1].buf[3] = 4
assert first.buf[3] == 4
"""
    run(program, name)


def test_emulated_blocks_are_in_their_directory(name: str, tmp_path: Path) -> None:
    program = """
import sys, ndshm
block = ndshm.SharedMemory(sys.argv[1], create=True, size=10)
ndshm.SharedMemory(sys.argv[1]).buf[0] = 5
assert block.buf[0] == 5
"""
    run(program, name, EMULATE_SHM="1", NDSHM_EMULATED_DIR=str(tmp_path))
    assert (tmp_path / name).read_bytes()[0] == 5
    assert not os.path.exists(f"/dev/shm/{name}")
