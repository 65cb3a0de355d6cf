"""A joblib user: sends many arrays to `Parallel`, one after the other, in a container with little shared memory.

The scripts follow docs/guide/python.md, "Send arrays to other processes" and "When memory runs out".
"""

from __future__ import annotations

from pathlib import Path

import small_shm

COMMON = """
    import os

    import numpy
    from joblib import Parallel, delayed

    import ndshm


    def total(array, row):
        with array.read() as x:
            return int(x[row, 0])


    def left():
        return sum(name.startswith("ndshm-") for name in os.listdir("/dev/shm"))


    block = numpy.zeros((50, 1 << 20), "u1")
"""


def test_loop_over_eight_arrays_needs_room_for_a_few(tmp_path: Path) -> None:
    program = """
    for _ in range(ROUNDS):
        for number in range(8):
            block[:] = number
            array = ndshm.share(block)
            assert Parallel(n_jobs=2)(delayed(total)(array, row) for row in range(4)) == [number] * 4
            del array
    print(left())
    ndshm.in_flight.clear()
    print(left())
    """
    before, after = small_shm.run(COMMON + program, tmp_path)
    assert int(before) <= 5 and after == "0"


def test_arguments_of_a_generator_are_freed_as_they_were_used(tmp_path: Path) -> None:
    program = """
    def arrays():
        for number in range(8):
            block[:] = number
            yield ndshm.share(block)

    for _ in range(ROUNDS):
        parallel = Parallel(n_jobs=2, batch_size=1, pre_dispatch="n_jobs")
        assert parallel(delayed(total)(array, 1) for array in arrays()) == list(range(8))
    """
    small_shm.run(COMMON + program, tmp_path)


def test_plain_pickles_are_given_up_only_after_they_were_loaded(tmp_path: Path) -> None:
    program = """
    import pickle

    first = pickle.dumps(ndshm.share(block))
    for number in range(8 * ROUNDS):
        data = pickle.dumps(ndshm.share(block))
        pickle.loads(data).close()
    last = data
    unused = [pickle.dumps(ndshm.share(block)) for _ in range(4)]
    try:
        ndshm.create("one-more", block.shape, "u1")
    except ndshm.NoSpace as error:
        print(error)
    try:
        pickle.loads(last)
    except ndshm.HandleExpired as error:
        print(error)
    assert pickle.loads(first).shape == block.shape
    # Every way to make an array finds the room of pickles that were loaded.
    ways = [
        lambda: ndshm.create("array", block.shape, "u1"),
        lambda: ndshm.from_array("array", block),
        lambda: ndshm.RenderBuffer("array", block.shape, (10, 1 << 20), "u1"),
        lambda: ndshm.share_zeros(block.shape, "u1"),
    ]
    for make in ways:
        for data in [first, *unused]:
            pickle.loads(data).close()
        made = make()
        made.discard() if isinstance(made, ndshm.RenderBuffer) else made.close()
        del made
        ndshm.unlink("array")
        ndshm.in_flight.clear()
        first, *unused = [pickle.dumps(ndshm.share(block)) for _ in range(5)]
    """
    full, gone = small_shm.run(COMMON + program, tmp_path)
    for text in ("pickles keep 251 MiB", "251 MiB by pickles of this process", "0 MiB by those of other", "clear()", "gc(in_flight=True)"):
        assert text in full, full
    assert "when memory runs out" in gone and "retries=" in gone, gone
