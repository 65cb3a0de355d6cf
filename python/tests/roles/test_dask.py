"""A dask user: submits work on many arrays to a cluster on this machine, in a container with little shared memory.

The script follows docs/guide/python.md, "Send arrays to other processes" and "When memory runs out".
"""

from __future__ import annotations

from pathlib import Path

import small_shm


def test_loop_over_eight_arrays_needs_room_for_a_few(tmp_path: Path) -> None:
    program = """
    import os
    import time

    import dask
    import distributed
    import numpy

    import ndshm


    def total(array, row):
        with array.read() as x:
            return int(x[row, 0])


    if __name__ == "__main__":
        dask.config.set({"distributed.admin.low-level-log-length": 0})
        options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None}
        with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster) as client:
            block = numpy.zeros((50, 1 << 20), "u1")
            for _ in range(ROUNDS):
                for number in range(8):
                    block[:] = number
                    array = ndshm.share(block)
                    futures = [client.submit(total, array, row) for row in range(2)]
                    assert client.gather(futures) == [number] * 2
                    del array, futures
        ndshm.in_flight.clear()
        end = time.monotonic() + 10
        while left := [name for name in os.listdir("/dev/shm") if name.startswith("ndshm-")]:
            if time.monotonic() > end:
                break
            ndshm.gc()  # the cluster kills workers, and some end after it
            time.sleep(0.01)
        print(left)
    """
    assert small_shm.run(program, tmp_path) == ["[]"]
