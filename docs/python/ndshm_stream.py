"""Reads the streams of ndarray-shm, and holds their frames, with nothing but the standard library. Python 3.9 or later, 64-bit Linux."""

import math
import mmap
import os
import struct
import time
import zlib

from ndshm_locks import BASE, READ, WRITE, is_locked, lock, open_file
from ndshm_locks import NONE as UNLOCK

PAGE, ENTRY, SLOT, WRITER = 4096, 320, 1 << 22, (BASE + 5, 1)


class Stream:
    """A stream, opened for reading. In a forked child, open it again."""

    def __init__(self, directory, name):
        self.fd = open_file(os.path.join(directory, f".ndshm-frames-{name}"), write=False)  # for locks: never mapped
        with os.fdopen(os.open(f"/proc/self/fd/{self.fd}", os.O_RDONLY | os.O_CLOEXEC), "rb") as file:
            self.bytes = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        magic, version, kind, length, payload = struct.unpack_from("<8sHHIQ", self.bytes, len(self.bytes) - 64)
        check = struct.unpack_from("<I", self.bytes, len(self.bytes) - 4)[0]
        if (magic, version, kind) != (b"\x89NDSHM\r\n", 2, 5) or zlib.crc32(self.bytes[-64:-4]) != check or payload + length != len(self.bytes):
            raise ValueError("not the frames of a stream")
        kind, order, axes, fields, self.copied, self.slots = struct.unpack_from("<8sBB2xHHQ", self.bytes, payload)
        self.dtype, self.order = kind.rstrip(b"\0").decode(), chr(order)
        self.shape = struct.unpack_from(f"<{axes}Q", self.bytes, payload + 40)
        self.size = math.prod(self.shape) * (2 if self.dtype == "bfloat16" else int(self.dtype[2:]))
        self.ring = PAGE + self.slots * ENTRY
        self.first = -(-(self.ring + 8 * self.slots) // PAGE) * PAGE
        self.stride = max(-(-self.size // PAGE), 1) * PAGE
        self.held = [0] * self.slots  # frames of one slot are one lock of this description

    def word(self, offset):
        return struct.unpack_from("<Q", self.bytes, offset)[0]

    def head(self):
        return self.word(0)

    def state(self):
        """0: open, 1: ended by its writer, 2: replaced."""
        return struct.unpack_from("<I", self.bytes, 12)[0]

    def has_writer(self):
        return is_locked(self.fd, READ, WRITER)

    def hold(self, number):
        """The slot and the elements of a frame, which stay until `release(slot)`; None: it is not there (any more)."""
        slot = self.word(self.ring + 8 * (number % self.slots))
        if number == 0 or slot >= self.slots or self.word(PAGE + ENTRY * slot) != number:
            return None
        start = self.first + slot * self.stride
        if self.copied:  # no locks; on processors that keep the order of loads, as x86 does
            copy = bytes(self.bytes[start : start + self.size])
            return (slot, memoryview(copy)) if self.word(PAGE + ENTRY * slot) == number else None
        mine = (BASE + 4096 + slot * SLOT + os.getpid() % SLOT, 1)
        if not self.held[slot] and not lock(self.fd, READ, mine, wait=False):
            return None
        self.held[slot] += 1
        if self.word(PAGE + ENTRY * slot) != number:  # looked at again under the lock
            return self.release(slot)
        return slot, self.bytes[start : start + self.size]

    def release(self, slot):
        if self.copied:
            return
        self.held[slot] -= 1
        if not self.held[slot]:
            lock(self.fd, UNLOCK, (BASE + 4096 + slot * SLOT + os.getpid() % SLOT, 1))

    def wait(self, seen, limit=60.0):
        """Waits for a frame after this number. Returns the head; None if none will come."""
        end = time.monotonic() + limit
        while time.monotonic() < end:
            is_over = self.state() != 0 or not self.has_writer()  # before the look at the head
            if self.head() > seen:
                return self.head()
            if is_over:
                return None
            time.sleep(0.001)
        raise TimeoutError
