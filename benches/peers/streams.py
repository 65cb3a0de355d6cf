"""The Python side of the stream topics: the same commands as src/main.rs, for Python.

    streams.py stream-latency CASE WAY READERS BYTES COUNT
    streams.py stream-idle CASE MILLISECONDS

Two cases are written anew after descriptions of what programs do. The writer's process starts those of its readers, which are idle
between two lines of input.
"""

import multiprocessing
import os
import pickle
import queue
import resource
import sys
import time
from multiprocessing import shared_memory

import numpy as np
from peers import fresh_name, serve

SLOTS = 8
PATIENCE = 30
# Frames before the measured ones: other cases have used the caches in between.
WARMING = 2 * SLOTS


class Ours:
    """ndshm.Stream"""

    def __init__(self, size, readers, context):
        import ndshm

        self.name = fresh_name()
        self.writer = ndshm.Stream.create(self.name, (size,), "uint8", slots=SLOTS, copied=size <= 4096)

    def __getstate__(self):
        return self.name

    def __setstate__(self, name):
        import ndshm

        self.name, self.empty, self.none = name, ndshm.WouldBlock, ndshm.TimedOut

    def send(self, source):
        with self.writer.frame() as frame:
            frame.x[:] = source

    def open(self, reader):
        import ndshm

        self.reader = ndshm.Stream.open(self.name)

    def poll(self, look):
        try:
            frame = self.reader.next(timeout=0)
        except self.empty:
            return None
        return look(frame.x)

    def wait(self, limit, look):
        try:
            frame = self.reader.next(timeout=limit)
        except self.none:
            return None
        return look(frame.x)

    def end(self):
        self.writer.end()


class SharedRing:
    """SharedMemory with one flag or none, as several programs have it: slots of one size one after another."""

    def __init__(self, size):
        self.memory = shared_memory.SharedMemory(fresh_name(), create=True, size=size)
        self.is_own = True

    def __getstate__(self):
        return {key: value for key, value in self.__dict__.items() if key != "memory"} | {"name": self.memory.name}

    def __setstate__(self, state):
        self.memory = shared_memory.SharedMemory(state.pop("name"))
        self.__dict__ |= state
        self.is_own = False

    def end(self):
        if self.is_own:
            self.memory.unlink()


class FlaggedRing(SharedRing):
    """vLLM's way: each slot has a flag of the writer and one of each reader. The writer waits until all readers have read a slot, and
    readers spin, giving up the CPU at each turn. Objects are pickled, large buffers beside the pickle."""

    def __init__(self, size, readers, context):
        self.room = size + 4096
        self.flags = readers + 1
        self.readers, self.turn = readers, 0
        super().__init__(SLOTS * (self.room + self.flags))

    def slot(self):
        at = self.turn % SLOTS
        flags = SLOTS * self.room + at * self.flags
        return self.memory.buf[at * self.room : (at + 1) * self.room], self.memory.buf[flags : flags + self.flags]

    def send(self, source):
        room, flags = self.slot()
        while flags[0] and not all(flags[1:]):
            os.sched_yield()
        flags[0] = 0
        buffers = []
        head = pickle.dumps(source, protocol=5, buffer_callback=buffers.append)
        body = buffers[0].raw()
        room[:16] = len(head).to_bytes(8, "little") + len(body).to_bytes(8, "little")
        room[16 : 16 + len(head)] = head
        room[2048 : 2048 + len(body)] = body
        for reader in range(self.readers):
            flags[1 + reader] = 0
        flags[0] = 1
        self.turn += 1

    def open(self, reader):
        self.reader = reader

    def poll(self, look):
        room, flags = self.slot()
        if not flags[0] or flags[1 + self.reader]:
            os.sched_yield()
            return None
        head, body = (int.from_bytes(room[at : at + 8], "little") for at in (0, 8))
        seen = look(pickle.loads(room[16 : 16 + head], buffers=[room[2048 : 2048 + body]]))
        flags[1 + self.reader] = 1
        self.turn += 1
        return seen

    def wait(self, limit, look):
        end = time.monotonic() + limit
        while (seen := self.poll(look)) is None and time.monotonic() < end:
            pass
        return seen


class ToldRing(SharedRing):
    """shrimPy's way: pixels in a ring that nothing guards, the number of the slot through a queue of each reader. Readers copy."""

    def __init__(self, size, readers, context):
        self.size, self.turn = size, 0
        self.queues = [context.Queue() for _ in range(readers)]
        super().__init__(SLOTS * size)

    def slot(self, index):
        return np.frombuffer(self.memory.buf, np.uint8, self.size, index * self.size)

    def send(self, source):
        index = self.turn % SLOTS
        self.slot(index)[:] = source
        self.turn += 1
        for each in self.queues:
            each.put(index)

    def open(self, reader):
        self.queue = self.queues[reader]

    def wait(self, limit, look):
        try:
            return look(self.slot(self.queue.get(timeout=limit)).copy())
        except queue.Empty:
            return None


class Queues:
    """multiprocessing.Queue of numpy arrays, one of each reader."""

    def __init__(self, size, readers, context):
        self.queues = [context.Queue() for _ in range(readers)]

    def send(self, source):
        copy = source.copy()  # put() returns before the array is pickled
        for each in self.queues:
            each.put(copy)

    def open(self, reader):
        self.queue = self.queues[reader]

    def wait(self, limit, look):
        try:
            return look(self.queue.get(timeout=limit))
        except queue.Empty:
            return None

    def end(self):
        pass


CASES = {"ours-python": Ours, "flagged-ring": FlaggedRing, "told-ring": ToldRing, "queues": Queues}


def look(array):
    """Reads all elements, and returns how many nanoseconds ago the frame's writer began it."""
    array.view(np.uint64).sum()
    return time.monotonic_ns() - int(array[:8].view(np.uint64)[0])


def wait_for(words, index, value, pause):
    end = time.monotonic() + PATIENCE
    while words[index] < value:
        pause()
        if time.monotonic() > end:
            raise RuntimeError("a frame was lost, or a reader has ended")


def pin(way, is_writer):
    os.sched_setaffinity(0, [0] if is_writer or way == "one-cpu" else [1])


def read(side, way, index, readers, shared, pipe):
    """Runs in a reader's process."""
    pin(way, False)
    board = np.frombuffer(shared, np.uint64)
    side.open(index)
    pipe.send("ready")
    try:
        while (line := pipe.recv()) is not None:
            word, count = line
            pipe.send(latencies(side, way, index, readers, board, count) if word == "latency" else sleep(side, count))
    except (EOFError, KeyboardInterrupt):
        pass


def latencies(side, way, index, readers, board, count):
    found = []
    board[2 * index] = 1
    end = time.monotonic() + PATIENCE
    for done in range(1, WARMING + count + 1):
        if way == "polling":
            while (seen := side.poll(look)) is None:
                if readers > 1:
                    os.sched_yield()
                if time.monotonic() > end:
                    raise RuntimeError("no frame came")
        else:
            seen = side.wait(PATIENCE, look)
        found.append(seen)
        board[2 * index + 1] = done
    return found[WARMING:]


def sleep(side, milliseconds):
    begin, cpu, wakes = time.monotonic(), time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
    assert side.wait(milliseconds / 1e3, look) is None
    seconds = time.monotonic() - begin
    wakes = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - wakes
    return {"seconds": (time.process_time() - cpu) / seconds, "wakes": wakes / seconds}


class Stage:
    """The writer with its readers, and what a frame is copied from."""

    def __init__(self, case, way, readers, size):
        pin(way, True)
        context = multiprocessing.get_context("spawn")
        self.way, self.readers = way, readers
        self.side = CASES[case](size, readers, context)
        self.source = np.resize(np.arange(1000, dtype=np.uint8), size)
        shared = context.RawArray("Q", 2 * readers)
        self.board = np.frombuffer(shared, np.uint64)
        self.processes, self.pipes = [], []
        for index in range(readers):
            own, other = context.Pipe()
            words = (self.side, way, index, readers, shared, other)
            self.processes.append(context.Process(target=read, args=words, daemon=True))
            self.processes[-1].start()
            self.pipes.append(own)
        self.answers()

    def answers(self):
        return [pipe.recv() for pipe in self.pipes]

    def ask(self, *line):
        for pipe in self.pipes:
            pipe.send(line)

    def rest(self):
        each = 60e-6 if self.way != "polling" else 20e-6
        end = time.monotonic() + each * self.readers
        if self.way == "one-cpu":
            time.sleep(each * self.readers)
        while time.monotonic() < end:
            pass

    def latencies(self, count):
        self.board[:] = 0
        self.ask("latency", count)
        for index in range(self.readers):
            wait_for(self.board, 2 * index, 1, lambda: time.sleep(1e-4))
        time.sleep(0.002)
        # The queues have a thread in this process that sends what is put.
        pause = (lambda: time.sleep(20e-6)) if self.way == "one-cpu" or hasattr(self.side, "queues") else lambda: None
        clock = self.source[:8].view(np.uint64)
        for sent in range(1, WARMING + count + 1):
            self.rest()
            clock[0] = time.monotonic_ns()
            self.side.send(self.source)
            for index in range(self.readers):
                wait_for(self.board, 2 * index + 1, sent, pause)
        return sorted(latency / 1e9 for found in self.answers() for latency in found)

    def end(self):
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(10)
        self.side.end()


def latency(case, way, readers, size, count):
    stage = Stage(case, way, int(readers), int(size))
    stage.latencies(20)

    def answer(*_):
        times = stage.latencies(int(count))
        return {"seconds": times[len(times) // 2], "p99": times[len(times) * 99 // 100], "least": times[0]}

    serve(answer)
    stage.end()


def idle(case, milliseconds):
    stage = Stage(case, "two-cpus", 1, 4096)
    stage.latencies(20)

    def answer(*_):
        stage.ask("idle", int(milliseconds))
        return stage.answers()[0]

    serve(answer)
    stage.end()


if __name__ == "__main__":
    {"stream-latency": latency, "stream-idle": idle}[sys.argv[1]](*sys.argv[2:])
