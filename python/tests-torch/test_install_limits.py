"""Programs of torch that hit a limit run on, or say so at once: descriptors, /dev/shm, loops that are left, memory.

Each program is in `limits.py`, and has a /dev/shm of its own. With ``NDSHM_TORCH_FULL=1`` the numbers are those of the claims.
"""

from __future__ import annotations

from pathlib import Path

from ways import FULL, each_way, run

LIMITS = Path(__file__).with_name("limits.py")


def limited(role: str, way: str, *arguments: object, directory: Path, shm: str, seconds: float) -> None:
    """Run a role, which takes at most this long with its short numbers."""
    timeout = 3600 if FULL else seconds
    print(run(LIMITS, role, way, *arguments, directory=directory, shm=shm, timeout=timeout, LIMITS_HANG=str(timeout * 0.9)))


@each_way(file_descriptor="Too many open files", file_system="a file and a mapping for each tensor: vm.max_map_count")
def test_trainer_with_64_descriptors_keeps_every_batch(way: str, tmp_path: Path) -> None:
    limited("keep_all", way, 100_000 if FULL else 3_000, 64, directory=tmp_path, shm="4g", seconds=120)


@each_way()
def test_batches_that_fit_one_by_one_do_not_fill_shared_memory(way: str, tmp_path: Path) -> None:
    limited("fit_one_by_one", way, 100_000 if FULL else 1_000, directory=tmp_path, shm="64m", seconds=180)


@each_way(file_system="prefetched batches of a loop that was left stay: No space left on device")
def test_loops_that_are_left_early_do_not_fill_shared_memory(way: str, tmp_path: Path) -> None:
    limited("leave_early", way, 100 if FULL else 10, directory=tmp_path, shm="512m", seconds=180)


@each_way(
    file_descriptor="a batch of a custom collate: the error is lost in the feeder thread, and the loader waits",
    file_system="a batch of a custom collate: the error is lost in the feeder thread, and the loader waits",
)
def test_batch_that_does_not_fit_is_an_error_in_the_trainer(way: str, tmp_path: Path) -> None:
    limited("one_does_not_fit", way, directory=tmp_path, shm="64m", seconds=90)


@each_way(
    file_descriptor="ConnectionRefusedError: the sender has ended",
    file_system="No such file or directory: the sender's manager has ended",
)
def test_messages_of_a_sender_that_ended_are_read_late(way: str, tmp_path: Path) -> None:
    limited("read_late", way, 60 if FULL else 3, directory=tmp_path, shm="256m", seconds=90)


@each_way()
def test_many_sent_tensors_do_not_let_a_process_grow(way: str, tmp_path: Path) -> None:
    limited("send_many", way, 1_000_000 if FULL else 20_000, directory=tmp_path, shm="1g", seconds=120)
