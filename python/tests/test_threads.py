"""Threads of the package: none is left when its work has ended, so that a fork finds only those of the program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import ndshm
from servers import serving

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")

# Python 3.12 and later warn of a fork if this number is not 1 after it. Libraries that expect forks, such as OpenBLAS, end their threads before.
FORK = """
import os

def fork(act=lambda: None):
    child = os.fork()
    if not child:
        try:
            act()
            os._exit(0)
        finally:
            os._exit(1)
    with open("/proc/self/stat") as file:
        number = int(file.read().rpartition(")")[2].split()[17])
    assert os.waitpid(child, 0)[1] == 0
    return number
"""


def run(program: str, *arguments: str) -> str:
    """Run a program that has the function `fork`, and return what it printed."""
    command = [sys.executable, "-c", FORK + textwrap.dedent(program), *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as process:
        try:
            printed, errors = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its children too
            raise
    assert process.returncode == 0, errors
    assert not errors
    return printed


VOLUMES: dict[str, dict[str, object]] = {
    "raw": {},
    "sharded": {"shard": (16, 16, 16)},
    "zstd": {"encoding": "zstd"},
    "blosc": {"encoding": "blosc"},
    "zarr2": {"format": "zarr2", "encoding": "gzip"},
    "precomputed": {"format": "precomputed", "encoding": "compressed_segmentation", "kind": "segmentation"},
}


@pytest.mark.parametrize("kind", VOLUMES)
def test_fork_after_a_job_finds_one_thread(kind: str, tmp_path: Path) -> None:
    program = """
        import json, sys
        import numpy, ndshm

        place, how = sys.argv[1], json.loads(sys.argv[2])
        x = numpy.arange(4096, dtype="uint32").reshape(16, 16, 16)
        print(fork())
        volume = ndshm.create_volume(place, x.shape, (8, 8, 8), "uint32", **how)
        print(fork())
        ndshm.upload(volume, x).result()
        print(fork())
        assert (ndshm.download(volume).result()[...].reshape(x.shape) == x).all()
        print(fork())
        assert ndshm.download(volume, "3:9,:,1:16", processes=True).result().sum() == x[3:9, :, 1:].sum()
        print(fork())
    """
    assert run(program, str(tmp_path / kind), json.dumps(VOLUMES[kind])) == 5 * "1\n"


def test_fork_after_requests_finds_one_thread(tmp_path: Path) -> None:
    volume = ndshm.create_volume(tmp_path / "v", (16, 16), (8, 8), "uint8")
    ndshm.upload(volume, np.ones((16, 16), "u1")).result()
    program = """
        import sys
        import ndshm

        for _ in range(3):
            volume = ndshm.Volume(sys.argv[1])
            print(fork())
            assert ndshm.download(volume).result().sum() == 256
            print(fork(lambda: ndshm.download(sys.argv[1]).result()))
    """
    with serving(tmp_path) as server:
        assert run(program, f"zarr://{server.url}/v") == 6 * "1\n"


def test_fork_after_sharing_finds_one_thread() -> None:
    program = """
        import ndshm

        array = ndshm.share_zeros(1 << 28, "uint8")
        print(fork(), fork(array.sum))
    """
    assert run(program) == "1 1\n"


def test_forks_amid_a_thousand_jobs_do_not_hang(tmp_path: Path) -> None:
    volume = ndshm.create_volume(tmp_path / "v", (16, 16), (8, 8), "uint8")
    ndshm.upload(volume, np.ones((16, 16), "u1")).result()
    program = """
        import sys
        from concurrent.futures import ThreadPoolExecutor
        import ndshm

        def job(_=None):
            assert ndshm.download(sys.argv[1]).result().sum() == 256

        with ThreadPoolExecutor(4) as executor:
            jobs = executor.map(job, range(1000))
            for _ in range(30):
                fork(job)
            assert len(list(jobs)) == 1000
    """
    run(program, str(tmp_path / "v"))


INTERRUPTED = """
import os, signal, threading, time
from ndshm import _imports

held = threading.Event()

def hold():
    with _imports.importing():
        held.set()
        time.sleep(1)

threading.Thread(target=hold).start()
held.wait()
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    child = os.fork()
    if not child:
        os._exit(0)
    time.sleep(5)
except KeyboardInterrupt:
    print("interrupted", flush=True)
os.wait()
assert not _imports._lock._is_owned()
"""


def test_ctrl_c_while_a_fork_waits_comes_after_it() -> None:
    assert run(INTERRUPTED) == "interrupted\n"


def test_fork_does_not_wait_for_threads_of_the_program(tmp_path: Path) -> None:
    program = """
        import threading, time
        import ndshm

        end = threading.Event()
        with open("/proc/self/comm", "w") as file:
            file.write("ndshm-worker.py")  # as that of a script with this name; threads inherit it
        thread = threading.Thread(target=end.wait)
        thread.start()
        begin = time.monotonic()
        fork()
        print(time.monotonic() - begin < 0.2)
        end.set()
    """
    assert run(program) == "True\n"


def test_forks_beside_the_first_request_and_picture_do_not_hang(tmp_path: Path) -> None:
    volume = ndshm.create_volume(tmp_path / "v", (16, 16), (8, 8), "uint8")
    ndshm.upload(volume, np.ones((16, 16), "u1")).result()
    program = """
        import logging  # pillow imports it, and its own hooks of forks must not come in the middle of one
        import sys, threading, time
        import numpy, ndshm

        array = ndshm.share(numpy.eye(4))
        act = (lambda: ndshm.download(sys.argv[1]).result()) if sys.argv[2] == "request" else array._repr_html_
        thread = threading.Thread(target=act)
        thread.start()
        time.sleep(float(sys.argv[3]))
        fork(act)
        thread.join()
    """
    with serving(tmp_path) as server:
        for number in range(16):
            run(program, f"zarr://{server.url}/v", "request", str(number * 0.0003))
            run(program, "", "picture", str(number * 0.002))
