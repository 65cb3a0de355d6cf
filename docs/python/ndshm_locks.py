"""Attaches, reads, writes and unlinks arrays of ndarray-shm under its locks. Python 3.9 or later on 64-bit Linux."""

import fcntl
import mmap
import os
import struct
import time
from contextlib import contextmanager

BASE = 1 << 62
LEASE = (BASE, 1)
NAME = (BASE + 1, 1)
GATE = (BASE + 2, 1)
COUNTED = (BASE + 3, 1)
BEGINNING = (BASE + 4, 1)
CELLS = (BASE + 4096, 1 << 61)
GATE_WAIT = 10  # seconds

READ, WRITE, NONE = fcntl.F_RDLCK, fcntl.F_WRLCK, fcntl.F_UNLCK


def flock(kind, area):
    """struct flock: type, whence, start, length, and a pid that must be 0."""
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, *area, 0)


def lock(fd, kind, area, wait=True):
    """Locks an area (start, length) for this open file description; False: others are in the way, and wait is False."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, flock(kind, area))
        return True
    except (BlockingIOError, PermissionError):  # EAGAIN, EACCES
        return False


def is_locked(fd, kind, area):
    """Whether a lock of this kind would have to wait. Takes nothing."""
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, flock(kind, area))
    return struct.unpack("hhqqi4x", answer)[0] != NONE


def open_file(path, write):
    return os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC)


class Array:
    """A mapped file and its lease. The mmap object has a copy of the descriptor: the lease lasts until close()."""

    def __init__(self, path, write=True):
        self.path = path
        while True:
            fd = open_file(path, write)
            try:
                leased = lock(fd, READ, LEASE, wait=False)
                facts = os.fstat(fd)
                if not os.path.samestat(facts, os.lstat(path)):  # unlinked or used again since: look again
                    continue
                if not leased:  # another process holds it alone for a moment
                    time.sleep(0.001)
                    continue
                self.id, self.owner = (facts.st_dev, facts.st_ino), facts.st_uid
                self.bytes = mmap.mmap(fd, 0, access=mmap.ACCESS_WRITE if write else mmap.ACCESS_READ)
                return
            finally:
                os.close(fd)

    def close(self):
        self.bytes.close()

    @contextmanager
    def locked(self, kind, area=CELLS, wait=True):
        """Holds all cells, or one, on a descriptor of its own; BlockingIOError: they are not free, and wait is False."""
        fd = open_file(self.path, kind == WRITE)
        try:
            everything = kind == WRITE and area == CELLS
            deadline = time.monotonic() + GATE_WAIT  # a writer that is stopped at the gate keeps it closed
            if everything and wait:  # closes the gate until it has the cells: no new reader gets in before it
                while not lock(fd, WRITE, GATE, wait=False) and time.monotonic() < deadline:
                    time.sleep(0.002)
            elif not everything:
                while is_locked(fd, READ, GATE) and time.monotonic() < deadline:
                    if not wait:
                        raise BlockingIOError(f"{self.path}: a writer is waiting")
                    time.sleep(0.002)
            granted = lock(fd, kind, area, wait)
            lock(fd, NONE, GATE)
            if not granted:
                raise BlockingIOError(f"{self.path}: in use")
            facts = os.fstat(fd)
            if facts.st_nlink == 0 or (facts.st_dev, facts.st_ino) != self.id:
                raise FileNotFoundError(f"{self.path}: unlinked or replaced")
            yield
        finally:
            lock(fd, NONE, CELLS)  # a process that is just being spawned may share the descriptor for a moment
            os.close(fd)


def attached(path):
    """Whether any process is attached."""
    fd = open_file(path, write=False)
    try:
        return is_locked(fd, WRITE, LEASE) or is_locked(fd, WRITE, COUNTED)
    finally:
        os.close(fd)


def unlink(path):
    """Removes the name; False: nothing had it."""
    while True:
        try:
            fd = open_file(path, write=True)
        except FileNotFoundError:
            return False
        try:
            lock(fd, WRITE, NAME)
            if os.path.samestat(os.fstat(fd), os.lstat(path)):
                os.unlink(path)
                return True
        except FileNotFoundError:
            return False
        finally:
            os.close(fd)
