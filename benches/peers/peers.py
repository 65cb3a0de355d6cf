"""The Python side of scripts/bench-peers: the same topics and commands as src/main.rs, for Python's libraries.

    peers.py fill CASE BYTES THREADS | attach CASE BYTES | small CASE BYTES COUNT | many CASE BYTES COUNT
    peers.py round-trip CASE WAY BYTES COUNT
"""

import gc
import itertools
import json
import mmap
import os
import pickle
import subprocess
import sys
import threading
import time

import numpy as np

numbers = itertools.count()


def fresh_name():
    return f"{os.environ['BENCH_PREFIX']}-{os.getpid()}-{next(numbers)}"


def source(size):
    """Creates the source of the copies. numpy asks for huge pages for large arrays."""
    return np.resize(np.arange(1000, dtype=np.float32), size // 4)


def copy(target, array, threads):
    parts = zip(np.array_split(target, threads), np.array_split(array, threads))
    rest = [threading.Thread(target=np.copyto, args=part) for part in itertools.islice(parts, 1, None)]
    for thread in rest:
        thread.start()
    np.copyto(np.array_split(target, threads)[0], np.array_split(array, threads)[0])
    for thread in rest:
        thread.join()


def add_up(array):
    """Adds up floats with torch, which reaches the speed of the memory; numpy does not."""
    try:
        import torch

        torch.set_num_threads(1)
        return torch.from_numpy(array).sum().item()
    except ImportError:
        return array.sum()


class Python:
    """multiprocessing.shared_memory"""

    def __init__(self):
        from multiprocessing import shared_memory

        self.new = shared_memory.SharedMemory

    def create(self, name, array, threads=1):
        segment = self.new(name, create=True, size=array.nbytes)
        copy(np.frombuffer(segment.buf, array.dtype, array.size), array, threads)
        return segment

    def destroy(self, segment, name):
        segment.close()
        segment.unlink()

    def open(self, name, size):
        segment = self.new(name)
        return segment, np.frombuffer(segment.buf, np.float32, size // 4)


class CloudVolume:
    """cloudvolume.sharedmemory"""

    def __init__(self):
        from cloudvolume import sharedmemory

        self.module = sharedmemory
        sharedmemory.EMULATE_SHM = False

    def create(self, name, array, threads=1):
        handle, target = self.module.ndarray(array.shape, array.dtype, name)
        copy(target, array, threads)
        return handle, target

    def destroy(self, segment, name):
        handle = segment[0]
        del segment
        try:
            handle.close()
        except BufferError:
            pass  # the array still uses the mapping; both are freed a moment later
        self.module.unlink(name)

    def open(self, name, size):
        return self.module.ndarray((size // 4,), np.float32, name, readonly=False)


class SharedArray:
    """SharedArray"""

    def __init__(self):
        import SharedArray

        self.module = SharedArray

    def create(self, name, array, threads=1):
        target = self.module.create(f"shm://{name}", array.shape, array.dtype)
        copy(target, array, threads)
        return target

    def destroy(self, segment, name):
        del segment
        self.module.delete(f"shm://{name}")

    def open(self, name, size):
        return None, self.module.attach(f"shm://{name}")


class Torch:
    """torch.multiprocessing with one of its strategies: tensors have no names and are handed over pickled."""

    def __init__(self, strategy):
        import torch
        import torch.multiprocessing

        torch.multiprocessing.set_sharing_strategy(strategy)
        self.torch = torch

    def create(self, name, array, threads=1):
        self.torch.set_num_threads(threads)
        # Half the work of share_memory_(), which needs a filled tensor in ordinary memory and copies it.
        storage = self.torch.UntypedStorage._new_shared(array.nbytes)
        target = self.torch.tensor([], dtype=self.torch.float32).set_(storage)
        target.copy_(self.torch.from_numpy(array))
        return target

    def destroy(self, segment, name):
        del segment


CASES = {
    "python": Python,
    "cloud-volume": CloudVolume,
    "SharedArray": SharedArray,
    "torch-descriptor": lambda: Torch("file_descriptor"),
    "torch-name": lambda: Torch("file_system"),
}


def serve(answer):
    """Answers every line of standard input with a line of JSON, until it ends."""
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        try:
            reply = answer(*line.split())
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), flush=True)


def fill(case, size, threads):
    peer, array, threads = CASES[case](), source(int(size)), int(threads)
    gc.disable()

    def answer(*_):
        name = fresh_name()
        begin = time.perf_counter()
        segment = [peer.create(name, array, threads)]
        made = time.perf_counter()
        peer.destroy(segment.pop(), name)
        return {"seconds": made - begin, "drop": time.perf_counter() - made}

    serve(answer)


def small(case, size, count):
    peer, array = CASES[case](), source(mmap.PAGESIZE)[: int(size) // 4]

    def answer(*_):
        begin = time.perf_counter()
        for _ in range(int(count)):
            name = fresh_name()
            segment = [peer.create(name, array)]
            peer.destroy(segment.pop(), name)
        return {"seconds": (time.perf_counter() - begin) / int(count)}

    serve(answer)


def many(case, size, count):
    peer, array = CASES[case](), source(mmap.PAGESIZE)[: int(size) // 4]

    def answer(*_):
        kept, ended, descriptors = [], None, len(os.listdir("/proc/self/fd"))
        begin = time.perf_counter()
        try:
            while len(kept) < int(count):
                name = fresh_name()
                kept.append((peer.create(name, array), name))
        except (OSError, RuntimeError) as error:
            ended = f"{type(error).__name__}: {error}"
        seconds, made = time.perf_counter() - begin, len(kept)
        for _ in range(4 if ended else 0):  # counting needs descriptors itself
            peer.destroy(*kept.pop())
        with open("/proc/self/maps") as maps:
            mappings = sum(1 for _ in maps)
        descriptors = len(os.listdir("/proc/self/fd")) - descriptors
        while kept:
            peer.destroy(*kept.pop())
        return {
            "made": made,
            "seconds": seconds / max(made, 1),
            "descriptors": descriptors,
            "mappings": mappings,
            "ended": ended,
        }

    serve(answer)


def timed_read(attach):
    begin = time.perf_counter()
    array = attach()
    add_up(array)
    first = time.perf_counter()
    add_up(array)
    return {"seconds": first - begin, "warm": time.perf_counter() - first}


def read(case, size):
    """Runs in the other process of `attach`, for segments with a name."""
    from multiprocessing import resource_tracker

    peer, kept = CASES[case](), []
    add_up(np.zeros(4, np.float32))

    def attach(name):
        segment, array = peer.open(name, int(size))
        if case == "python":
            # Until Python 3.13, the tracker of this process would remove the segment when the process ends.
            resource_tracker.unregister(segment._name, "shared_memory")
        kept.append((segment, array))
        return array

    def answer(name):
        try:
            return timed_read(lambda: attach(name))
        finally:
            kept.clear()

    serve(answer)


def read_torch(strategy, connection):
    """Runs in the other process of `attach`, for tensors."""
    peer = Torch(strategy)
    add_up(np.zeros(4, np.float32))
    while (message := connection.recv_bytes()) != b"end":
        connection.send(timed_read(lambda: pickle.loads(message).numpy()))
        assert peer


def attach(case, size):
    peer, array = CASES[case](), source(int(size))
    name = fresh_name()
    segment = [peer.create(name, array)]
    if isinstance(peer, Torch):
        from multiprocessing.reduction import ForkingPickler

        context = peer.torch.multiprocessing.get_context("spawn")
        strategy = peer.torch.multiprocessing.get_sharing_strategy()
        own, other = context.Pipe()
        child = context.Process(target=read_torch, args=(strategy, other))
        child.start()

        def answer(*_):
            own.send_bytes(ForkingPickler.dumps(segment[0]))
            return own.recv()

        serve(answer)
        own.send_bytes(b"end")
        child.join()
    else:
        words = [sys.executable, __file__, "attach-reader", case, size]
        child = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        child.stdout.readline()

        def answer(*_):
            print(name, file=child.stdin, flush=True)
            return json.loads(child.stdout.readline())

        serve(answer)
        child.stdin.close()
        child.wait()
    peer.destroy(segment.pop(), name)


def pass_back(case, way, connection):
    """Runs in the other process of a round trip: receives an array, touches it, and sends it back."""
    os.sched_setaffinity(0, [0 if way == "one-cpu" else 1])
    peer = CASES[case]()
    while (message := connection.recv()) is not None:
        if isinstance(peer, Torch):
            message[0] += 1
        else:
            segment, array = peer.open(message, 1 << 20)
            array[0] += 1
            del array
            segment.close()
        connection.send(message)
        del message


def round_trip(case, way, size, count):
    """Sends through a pipe, the fastest way in Python. Torch's tensors are sent themselves, all other arrays by name."""
    peer, count = CASES[case](), int(count)
    import multiprocessing

    context = (peer.torch.multiprocessing if isinstance(peer, Torch) else multiprocessing).get_context("spawn")
    own, other = context.Pipe()
    child = context.Process(target=pass_back, args=(case, way, other))
    child.start()
    os.sched_setaffinity(0, [0])
    name, array = fresh_name(), source(int(size))
    segment = [peer.create(name, array)]
    message = segment[0] if isinstance(peer, Torch) else name

    def trip():
        begin = time.perf_counter()
        own.send(message)
        back = own.recv()
        if isinstance(peer, Torch):
            back[0] += 1
        return time.perf_counter() - begin

    trip()

    def answer(*_):
        times = sorted(trip() for _ in range(count))
        return {"seconds": times[count // 2], "p99": times[count * 99 // 100], "least": times[0]}

    serve(answer)
    own.send(None)
    child.join()
    message = None
    peer.destroy(segment.pop(), name)


if __name__ == "__main__":
    topics = {"attach-reader": read, "round-trip": round_trip}
    topics |= {function.__name__: function for function in (fill, small, many, attach)}
    topics[sys.argv[1]](*sys.argv[2:])
