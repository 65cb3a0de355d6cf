"""Paints chunks of a renderbuffer of ndarray-shm, side by side with any other painters."""

import math
import os
import struct
import uuid
import zlib
from contextlib import contextmanager

from ndshm_locks import BEGINNING, CELLS, LEASE, NAME, READ, WRITE, Array, lock

FOOTER = struct.Struct("<8sHHIQ16s16sII")
RECORD = struct.Struct("<8scB2xIQQ16sQ")


def this_boot():
    with open("/proc/sys/kernel/random/boot_id") as number:
        return uuid.UUID(number.read().strip()).bytes


def begin(directory, location, dtype, order, shape, chunk_shape, offset, fingerprint, item, begun=lambda: None):
    """Begins a buffer of zeros. FileExistsError: another process was quicker; FileNotFoundError: it was discarded."""
    part, path = (os.path.join(directory, f".ndshm-{kind}-{location}") for kind in ("part", "ledger"))
    payload, ledger = (os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600) for _ in range(2))
    try:
        size = item * math.prod(shape)
        os.truncate(payload, size)
        facts = os.fstat(payload)
        chunks = math.prod(-(-(length + before) // chunk) for length, before, chunk in zip(shape, offset, chunk_shape))
        text, states = fingerprint.encode(), -(-chunks // 64) * 64
        numbers = len(shape), len(text), facts.st_dev, facts.st_ino, this_boot(), chunks
        body = RECORD.pack(dtype.encode(), order.encode(), *numbers)
        body += struct.pack(f"<{3 * len(shape)}Q", *shape, *chunk_shape, *offset) + text
        head = b"\x89NDSHM\r\n", 2, 2, len(body) + FOOTER.size, states, os.urandom(16), bytes(16), zlib.crc32(body)
        footer = FOOTER.pack(*head, 0)[:-4]
        os.write(ledger, bytes(states) + body + footer + struct.pack("<I", zlib.crc32(footer)))
        lock(ledger, WRITE, BEGINNING)  # as long as this is held, the ledger is young
        lock(ledger, READ, LEASE)
        link(ledger, path)
        begun()
        os.posix_fallocate(payload, 0, size)
        lock(ledger, WRITE, NAME)  # from here on no process takes the ledger's name away
        if not os.path.samestat(os.fstat(ledger), os.lstat(path)):
            raise FileNotFoundError(f"{path}: discarded")
        if os.path.exists(part):
            os.unlink(part)  # it has no ledger
        link(payload, part)
    finally:
        os.close(payload)
        os.close(ledger)  # and with it all locks


def link(fd, path):
    os.link(f"/proc/self/fd/{fd}", path, src_dir_fd=fd, follow_symlinks=True)  # any src_dir_fd makes it linkat(2)


class Painter:
    """An unfinished renderbuffer: what its ledger says, and its payload."""

    def __init__(self, directory, location):
        self.payload = Array(os.path.join(directory, f".ndshm-part-{location}"))
        self.ledger = Array(os.path.join(directory, f".ndshm-ledger-{location}"))
        if {self.payload.owner, self.ledger.owner} != {os.geteuid()}:  # their owner could shorten them under us
            raise PermissionError("files of another user")
        file = self.ledger.bytes
        footer = file[-FOOTER.size :]
        magic, version, kind, trailer, states, _, zero, trailer_crc, footer_crc = FOOTER.unpack(footer)
        if (magic, version, kind, zero) != (b"\x89NDSHM\r\n", 2, 2, bytes(16)) or states + trailer != len(file):
            raise ValueError("not a ledger of layout version 2")
        body = file[states : -FOOTER.size]
        if (trailer_crc, footer_crc) != (zlib.crc32(body), zlib.crc32(footer[:-4])):
            raise ValueError("a damaged ledger")
        dtype, order, axes, _, device, inode, boot, self.chunks = RECORD.unpack_from(body)
        lengths = struct.unpack_from(f"<{3 * axes}Q", body, RECORD.size)
        self.shape, self.chunk_shape, self.offset = lengths[:axes], lengths[axes : 2 * axes], lengths[2 * axes :]
        self.dtype, self.order = dtype.rstrip(b"\0").decode(), order.decode()
        self.fingerprint = body[RECORD.size + 3 * 8 * axes :].decode()
        if this_boot() != boot:
            raise ValueError("perhaps left over from an earlier boot: its chunks may not have reached the disk")
        if self.payload.id != (device, inode):
            raise ValueError("the payload is not the ledger's")

    def region(self, index):
        """The elements that a chunk covers, one range for each axis. Chunks are numbered with the last axis fastest."""
        ranges = []
        for length, chunk, offset in reversed(list(zip(self.shape, self.chunk_shape, self.offset))):
            index, position = divmod(index, -(-(length + offset) // chunk))
            begin = position * chunk - offset
            ranges.append(range(max(begin, 0), min(begin + chunk, length)))
        return ranges[::-1]

    def is_done(self, index):
        return self.ledger.bytes[index] == 1

    @contextmanager
    def claim(self, index):
        """Holds a chunk, to be painted in the block; an exception in the block leaves it to be painted again.

        Yields None if it is painted already. BlockingIOError: another process is painting it.
        """
        with self.payload.locked(WRITE, (CELLS[0] + index, 1), wait=False):
            if self.is_done(index):
                yield None
            else:
                yield self.region(index)
                self.ledger.bytes[index] = 1  # before the lock is given up

    def close(self):
        self.payload.close()
        self.ledger.close()
