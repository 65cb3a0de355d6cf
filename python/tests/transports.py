"""Sends an array through one transport, in a process of its own: `python transports.py TRANSPORT OBJECT ENDING DIRECTORY`.

The test in test_transports.py starts this, and kills it or its receiver. TRANSPORT is a key of `TRANSPORTS`. OBJECT is `array`, a counted
array, or `slice`, a view of its elements, which every pickler copies. With the ENDING `normal` all processes end by themselves. Otherwise the
receiver waits with the array in its hands until the test has killed it, or its sender.

Sender and receiver leave notes in DIRECTORY: the array's name, their process numbers, and what the sender saw.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import ndshm


def note(directory: str, name: str, text: str) -> None:
    """Write a note that appears complete or not at all."""
    path = Path(directory, name)
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


def until(path: Path, may_come: Callable[[], bool] = lambda: True) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert may_come() and time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.005)


def touch(x: Any, directory: str, ending: str) -> None:
    """The receiver's work: write one element, and keep the array until the test goes on."""
    if isinstance(x, ndshm.Array):
        x[0] = 1
    elif x.flags.writeable:  # ray's copies are read-only
        x[0] = 1
    note(directory, "receiver", str(os.getpid()))
    if ending != "normal":
        until(Path(directory, "go-on"))


def from_queue(queue: Any, directory: str, ending: str) -> None:
    touch(queue.get(), directory, ending)


def from_pipe(pipe: Any, directory: str, ending: str) -> None:
    touch(pipe.recv(), directory, ending)


def pool(method: str) -> Callable[..., None]:
    def send(*work: Any) -> None:
        with multiprocessing.get_context(method).Pool(1) as workers:
            done = workers.apply_async(touch, work)
            # A pool never returns the result of a task if the worker was killed.
            while not done.ready() and not Path(work[1], "go-on").exists():
                time.sleep(0.005)
            if work[2] == "normal":
                workers.close()
                workers.join()

    return send


def process(method: str) -> Callable[..., None]:
    def send(*work: Any) -> None:
        receiver = multiprocessing.get_context(method).Process(target=touch, args=work)
        receiver.start()
        receiver.join()

    return send


def queue(method: str) -> Callable[..., None]:
    def send(x: Any, *work: Any) -> None:
        context = multiprocessing.get_context(method)
        line = context.Queue()
        receiver = context.Process(target=from_queue, args=(line, *work))
        receiver.start()
        line.put(x)
        receiver.join()

    return send


def pipe(method: str) -> Callable[..., None]:
    def send(x: Any, *work: Any) -> None:
        context = multiprocessing.get_context(method)
        near, far = context.Pipe()
        receiver = context.Process(target=from_pipe, args=(far, *work))
        receiver.start()
        near.send(x)
        receiver.join()

    return send


def executor(method: str) -> Callable[..., None]:
    def send(*work: Any) -> None:
        from concurrent.futures import ProcessPoolExecutor
        from concurrent.futures.process import BrokenProcessPool

        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context(method)) as workers:
            try:
                workers.submit(touch, *work).result()
            except BrokenProcessPool:
                assert work[2] == "receiver"

    return send


def joblib(*work: Any) -> None:
    import joblib
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    try:
        joblib.Parallel(n_jobs=2, backend="loky")([joblib.delayed(touch)(*work)])
    except TerminatedWorkerError:
        assert work[2] == "receiver"
    joblib.externals.loky.get_reusable_executor().shutdown()


def dask(*work: Any) -> None:
    import dask.config
    import distributed
    from distributed.scheduler import KilledWorker

    options: dict[str, Any] = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    dask.config.set({"distributed.scheduler.allowed-failures": 0})
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
        try:
            client.submit(touch, *work, pure=False).result()
        except KilledWorker:
            assert work[2] == "receiver"


def ray(*work: Any) -> None:
    import ray

    ray.init(
        num_cpus=2,
        object_store_memory=80 << 20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _temp_dir=str(Path(work[1], "ray")),
        runtime_env={"env_vars": {"PYTHONPATH": str(Path(__file__).parent)}},
    )
    task = ray.remote(max_retries=0)(touch)
    try:
        ray.get(task.remote(*work))
    except ray.exceptions.WorkerCrashedError:
        assert work[2] == "receiver"
    ray.shutdown()


def cloudpickle(*work: Any) -> None:
    from functools import partial

    import cloudpickle

    program = "import pickle, sys; pickle.load(sys.stdin.buffer)()"
    data = cloudpickle.dumps(partial(touch, *work))
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent)}
    subprocess.run([sys.executable, "-c", program], input=data, env=environment, check=work[2] == "normal")


TRANSPORTS: dict[str, Callable[..., None]] = {
    f"{kind.__name__}, {method}": kind(method)
    for kind in (pool, process, queue, pipe, executor)
    for method in ("fork", "spawn", "forkserver")
} | {"joblib": joblib, "dask": dask, "ray": ray, "cloudpickle": cloudpickle}


def main(transport: str, kind: str, ending: str, directory: str) -> None:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    array = ndshm.share_zeros(1000, "i4")
    note(directory, "array", array.name)
    note(directory, "sender", str(os.getpid()))
    # Functions of `__main__` would be pickled by value.
    import transports

    x = array if kind == "array" else np.asarray(array)[:10]
    transports.TRANSPORTS[transport](x, directory, ending)
    note(directory, "seen", json.dumps(int(array[0]) == 1))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main(*sys.argv[1:])
