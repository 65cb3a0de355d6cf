"""Paints chunks of a renderbuffer of ndarray-shm, side by side with any other painters."""

import os
import struct
import uuid
import zlib
from contextlib import contextmanager

from ndshm_locks import CELLS, WRITE, Array

FOOTER = struct.Struct("<8sHHIQ16s16sII")
RECORD = struct.Struct("<8scB2xIQQ16sQ")


class Painter:
    """An unfinished renderbuffer: what its ledger says, and its payload."""

    def __init__(self, directory, location):
        self.payload = Array(os.path.join(directory, f".ndshm-part-{location}"))
        self.ledger = Array(os.path.join(directory, f".ndshm-ledger-{location}"))
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
        with open("/proc/sys/kernel/random/boot_id") as this_boot:
            if uuid.UUID(this_boot.read().strip()).bytes != boot:
                raise ValueError("left over from an earlier boot: its chunks may not have reached the disk")
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

        Yields None if it is painted already. BlockingIOError: somebody else is painting it.
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
