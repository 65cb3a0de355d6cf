"""Sends and receives messages of ndarray-shm's channels, and maps the arrays in them. Python 3.9 or later, 64-bit Linux."""

import json
import math
import mmap
import os
import socket
import struct
import time
import zlib
from multiprocessing.reduction import recvfds, sendfds
from urllib.parse import unquote

from ndshm_locks import COUNTED, LEASE, READ, WRITE, is_locked, lock, open_file

PAGE = 4096
BATCH = 64
PREFIX = struct.Struct("<4sI")
FOOTER = struct.Struct("<8sHHIQ16s16sII")
NAME = struct.Struct("<H255s15x")
RECORD = struct.Struct("<16scB2xIQ256s16x")
WORD = struct.Struct("<Q")
DEAD = 1 << 63
SIZES = {"bfloat16": 2}


def reopen(fd, write=True):
    """Another description of the same file: its locks are its own."""
    return os.open(f"/proc/self/fd/{fd}", (os.O_RDWR if write else os.O_RDONLY) | os.O_CLOEXEC)


def lease(fd):
    """Leases a counted array, which no process may have attached as a plain one."""
    lock(fd, READ, COUNTED)
    for _ in range(100):  # a process that is just attaching has LEASE for a moment
        if not is_locked(fd, WRITE, LEASE):
            return
        time.sleep(0.001)
    raise ValueError("not a counted array: a process uses it as a plain one")


class Mapped:
    """The elements of an array that came in a message, and the lease. It is not counted: when the last counted handle has left,
    the name goes, and the bytes stay here until close()."""

    def __init__(self, fd, length, write, counted=True):
        """Leases and maps `length` bytes of a description of its own, which it takes over."""
        try:
            if counted:  # what is sealed has no name that could go
                lease(fd)
            access = mmap.ACCESS_WRITE if write else mmap.ACCESS_READ
            self.map = mmap.mmap(fd, max(length, 1), access=access)  # keeps a copy of the descriptor, and so the lease
            self.bytes = memoryview(self.map)[:length]
        finally:
            os.close(fd)

    def close(self):
        self.bytes.release()
        self.map.close()


class Trailer:
    """What the trailer of a counted array's file says, as it was when it was read."""

    def __init__(self, fd):
        length = os.fstat(fd).st_size
        page = os.pread(fd, PAGE, length - PAGE) if length >= PAGE else b""
        if len(page) != PAGE:
            raise ValueError("not a counted array")
        footer = page[-FOOTER.size :]
        magic, version, kind, trailer, self.payload, id, zero, constant_crc, footer_crc = FOOTER.unpack(footer)
        if (magic, version, kind, zero) != (b"\x89NDSHM\r\n", 2, 1, bytes(16)):
            raise ValueError("not a counted array of layout version 2")
        if (constant_crc, footer_crc) != (zlib.crc32(page[3440:4032]), zlib.crc32(footer[:-4])):
            raise ValueError("a damaged trailer")
        if self.payload + trailer != length:
            raise ValueError("a file of another length")
        self.id = int.from_bytes(id, "little")
        name_length, name = NAME.unpack(page[3456:3728])
        dtype, order, axes, self.maker, self.created, shape = RECORD.unpack(page[3728:4032])
        self.dtype, self.order = dtype.rstrip(b"\0").decode(), order.decode()
        self.shape = struct.unpack_from(f"<{axes}Q", shape)
        self.name = name[:name_length].decode()
        (self.word,) = WORD.unpack_from(page)

    @property
    def handles(self):
        return self.word & 0xFFFFFFFF


class Parcel:
    """An array of a message: what its sender says about it, and its descriptor, if it came with one."""

    def __init__(self, about, fd=None):
        self.about, self.fd = about, fd
        self.dtype, self.shape, self.order = about["dtype"], tuple(about["shape"]), about["order"]
        self.length = math.prod(self.shape) * SIZES.get(self.dtype, int(self.dtype[2:] if self.dtype[:1] in "<|" else 0))

    def map(self, write=False):
        """Maps the elements. What is sealed can only be read; what travels by name is found by its handle. A foreign descriptor
        is not mapped: `fd` is for the library of its kind."""
        if self.about["strategy"] == "file_system":
            return open_handle(self.about["handle"], write)
        if self.about["strategy"] not in ("file_descriptor", "sealed"):
            raise ValueError("not an array of ndarray-shm: " + self.about.get("kind", self.about["strategy"]))
        counted = self.about["strategy"] == "file_descriptor"
        if counted:
            trailer = Trailer(self.fd)
            if (trailer.dtype, trailer.shape, trailer.order) != (self.dtype, self.shape, self.order):
                raise ValueError("the array is not what the message says")
        elif os.fstat(self.fd).st_size != self.length:
            raise ValueError("the sealed memory is not what the message says")
        return Mapped(reopen(self.fd, write), self.length, write, counted)

    def copy(self):
        """A descriptor to send. Of an array it has a description of its own: the receiver's locks must not be ours. What a foreign
        one leads to can perhaps not be opened again."""
        if self.about["strategy"] in ("file_descriptor", "sealed"):
            return reopen(self.fd, self.about["strategy"] != "sealed")
        return os.dup(self.fd)

    def close(self):
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


def open_handle(text, write=False):
    """Maps the array that a handle means, by its name."""
    scheme, _ticket, id, _backend, directory, location = text.split(":")
    if scheme != "ndshm1":
        raise ValueError("not a handle")
    path = os.path.join(unquote(directory), unquote(location))
    while True:
        fd = open_file(path, write)
        try:
            lease(fd)
            if os.fstat(fd).st_nlink == 0:  # unlinked between open and lock: look again
                continue
            trailer = Trailer(fd)
            if trailer.id != int(id, 16) or trailer.name != unquote(location) or trailer.word & DEAD:
                raise FileNotFoundError(f"{path}: the array has gone")
            return Mapped(os.dup(fd), trailer.payload, write)
        finally:
            os.close(fd)


class Channel:
    """One end of a channel."""

    def __init__(self, stream):
        self.stream = stream

    @classmethod
    def connect(cls, path):
        stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        stream.connect(path)
        return cls(stream)

    def close(self):
        self.stream.close()

    def send(self, message, parcels=()):
        """Sends a message, and arrays that were received before: those with a descriptor by a copy of it."""
        body = json.dumps({"message": message, "arrays": [parcel.about for parcel in parcels]}).encode()
        self.stream.sendall(PREFIX.pack(b"NDSM", len(body)) + body)
        fds = [parcel.copy() for parcel in parcels if parcel.fd is not None]
        try:
            for begin in range(0, len(fds), BATCH):
                sendfds(self.stream, fds[begin : begin + BATCH])
        finally:
            for fd in fds:
                os.close(fd)

    def receive(self):
        """Waits for a message: (message, parcels). EOFError: the other end is closed."""
        magic, length = PREFIX.unpack(self.exactly(PREFIX.size))
        if magic != b"NDSM" or length > 64 << 20:
            raise ValueError("not a message of a channel")
        body = json.loads(self.exactly(length))
        count = sum(about["strategy"] != "file_system" for about in body["arrays"])
        fds = []
        while len(fds) < count:
            fds += recvfds(self.stream, min(BATCH, count - len(fds)))
        fds = iter(fds)
        parcels = [Parcel(about, None if about["strategy"] == "file_system" else next(fds)) for about in body["arrays"]]
        return body["message"], parcels

    def exactly(self, length):
        data = bytearray()
        while len(data) < length:
            part = self.stream.recv(min(length - len(data), 1 << 20))
            if not part:
                raise EOFError("the other end of the channel was closed")
            data += part
        return bytes(data)
