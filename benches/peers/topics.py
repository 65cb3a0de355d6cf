"""The comparisons: for each topic its cases, in groups with a common yardstick."""

from dataclasses import dataclass, field

MIB = 1 << 20

LABELS = {
    "ours": "ndarray-shm",
    "shared_memory": "shared_memory",
    "memmap2": "memmap2 over /dev/shm",
    "ipc-channel": "ipc-channel",
    "iceoryx2": "iceoryx2",
    "python": "multiprocessing.shared_memory",
    "cloud-volume": "CloudVolume sharedmemory",
    "SharedArray": "SharedArray",
    "torch-descriptor": "torch, file_descriptor",
    "torch-name": "torch, file_system",
}
IN_PYTHON = {"python", "cloud-volume", "SharedArray", "torch-descriptor", "torch-name"}


@dataclass
class Row:
    """A case: its name in tables, and the process that runs it."""

    label: str
    role: str  # ours, peer, yardstick, or other; rows with the role other are shown, but not compared
    words: list
    python: bool = False
    line: str = "go"
    cpus: str = ""
    touch: str = ""  # pages of this kind are touched and freed before each repetition
    fresh: bool = False  # each repetition has a new process, because this one is never idle
    descriptors: int = 0
    samples: list = field(default_factory=list)
    steal: list = field(default_factory=list)
    others: list = field(default_factory=list)
    missing: str = ""


def case(name, topic, *words, label="", role="", **how):
    role = role or ("ours" if name.startswith("ours") else "peer")
    words = [topic, name, *map(str, words)]
    return Row(label or LABELS[name], role, words, python=name in IN_PYTHON, **how)


def warm_copy(size, threads, cpus):
    line = f"copy {size} {threads}"
    return Row("copy between warm private buffers", "yardstick", ["machine"], line=line, cpus=cpus)


def fill(options):
    """Creating, filling by a copy, and removing; cold."""

    def rows(threads, cpus):
        yield warm_copy(options.bytes, threads, cpus)
        for name in LABELS:
            if threads > 1 and name == "ipc-channel":
                continue  # the library makes the copy itself, with one thread
            touch = "huge" if name == "ours" else "base"
            yield case(name, "fill", options.bytes, threads, cpus=cpus, touch=touch)

    return {"1 thread": list(rows(1, "0")), "2 threads": list(rows(2, "0,1"))}


def attach(options):
    """Attaching in a second process and reading everything once."""
    names = [name for name in LABELS if name not in ("ipc-channel", "iceoryx2")]  # their segments arrive with messages only
    # This library's array is on huge pages, if the machine has any left.
    return {"": [case(name, "attach", options.bytes, touch="huge" if name == "ours" else "") for name in names]}


def recycle(options):
    """Filling memory that was used before."""
    rows = [
        warm_copy(options.bytes, 1, "0"),
        case("ours", "recycle", options.bytes, label="ndarray-shm, a draft from a pool", cpus="0"),
        case("ours-published", "recycle", options.bytes, label="the same, published too", role="other", cpus="0"),
        case("iceoryx2", "recycle", options.bytes, label="iceoryx2, a loan from its pool", cpus="0"),
    ]
    return {"": rows}


def many(options):
    """Arrays of 1 KiB open at once with 1,024 descriptors."""
    count = 3000 if options.quick else 100_000
    names = [name for name in LABELS if name != "iceoryx2"]  # it needs a service for each array, which takes minutes
    return {"": [case(name, "many", 1024, count, descriptors=1024) for name in names]}


def arena(options):
    """Very many arrays in an arena, beside the peers that manage the most."""
    count, most = (10_000, 3000) if options.quick else (1_000_000, 10_000)
    rows = [
        case("ours", "arena", 1024, count, label="ndarray-shm, arena, in two processes", descriptors=64),
        case("SharedArray", "many", 1024, most, descriptors=1024),
        case("torch-name", "many", 1024, most, descriptors=1024),
    ]
    return {"": rows}


def small(options):
    """Creating, filling, publishing and dropping 4 KiB."""
    how = {"cpus": "0"}
    words = ["small", 4096, 200 if options.quick else 1000]
    rows = [
        case("calls-lease", *words, label="the system calls that are needed", role="yardstick", **how),
        case("calls", *words, label="the same without the lease", role="other", **how),
        case("ours-draft", *words, label="ndarray-shm, never published", role="other", **how),
    ]
    return {"": rows + [case(name, *words, **how) for name in LABELS]}


def round_trip(options):
    """Sending 1 MiB to another process and back, touched on both sides."""
    count = 100 if options.quick else 1000

    def waiting(way):
        words = ["round-trip", way, MIB, count]
        return [
            case("calls", *words, label="a futex in shared memory", role="yardstick"),
            case("ours-queue", *words, label="ndarray-shm, queue"),
            case("ours-queue-new", *words, label="ndarray-shm, queue, a new array each way", role="other"),
            case("ours-name", *words, label="ndarray-shm, channel, by name", role="other"),
            case("ours-descriptor", *words, label="ndarray-shm, channel, by descriptor", role="other"),
            case("iceoryx2", *words, label="iceoryx2, a new loan each way, events"),
            case("ipc-channel", *words),
            case("python", *words, label="multiprocessing.shared_memory, pipe"),
            case("torch-descriptor", *words, label="torch, file_descriptor, pipe"),
            case("torch-name", *words, label="torch, file_system, pipe"),
        ]

    words = ["round-trip", "polling", MIB, count * 20]
    polling = [
        case("calls", *words, label="a word in shared memory", role="yardstick", fresh=True),
        case("ours-queue", *words, label="ndarray-shm, queue", fresh=True),
        case("ours-queue-new", *words, label="ndarray-shm, queue, a new array each way", role="other", fresh=True),
        case("iceoryx2", *words, label="iceoryx2, a new loan each way", fresh=True),
    ]
    return {
        "waiting, both processes on one CPU": waiting("one-cpu"),
        "waiting, on two CPUs": waiting("two-cpus"),
        "polling, on two CPUs": polling,
    }


SIZES = (64, 4 << 10, 64 << 10, MIB, 1080 * 1920 * 3)
SHORT_SIZES = ("64 B", "4 KiB", "64 KiB", "1 MiB", "5.9 MiB")
PYTHON_STREAMS = {
    "ours-python": "ndarray-shm, in Python",
    "flagged-ring": "vLLM's way, in Python, spinning",
    "told-ring": "shrimPy's way, in Python",
    "queues": "multiprocessing.Queue, in Python",
}
RING = "a bare ring with sequence numbers"


def counted(readers):
    return f"{readers} reader{'s' if readers > 1 else ''}"


def stream_case(name, topic, *words, label="", role="", **how):
    role = role or {"ours": "ours", "ours-python": "other", "ring": "yardstick"}.get(name, "peer")
    row = Row(label or PYTHON_STREAMS.get(name) or LABELS.get(name) or RING, role, [topic, name, *map(str, words)], **how)
    row.python = name in PYTHON_STREAMS
    return row


def stream_latency(options):
    """Frames from one writer to 1 and 4 readers, which look at all of each."""
    ways = {"polling": "polling, on two CPUs", "two-cpus": "waiting, on two CPUs", "one-cpu": "waiting, all on one CPU"}
    python = {"polling": ["ours-python", "flagged-ring"]}

    def rows(way, readers, size):
        count = max(100, min(500, (200 << 20) // size // readers)) // (5 if options.quick else 1)
        for name in ("ring", "ours", "iceoryx2", *python.get(way, ["ours-python", "told-ring", "queues"])):
            # Pickling megabytes takes so long that fewer are enough.
            frames = count // 5 if name == "queues" and size >= MIB else count
            label = ", events" if name == "iceoryx2" and way != "polling" else ""
            yield stream_case(name, "stream-latency", way, readers, size, frames, label=label and LABELS[name] + label)

    return {
        f"{title}, {counted(readers)}, {short}": list(rows(way, readers, size))
        for way, title in ways.items()
        for readers in (1, 4)
        for size, short in zip(SIZES, SHORT_SIZES)
    }


def stream_rate(options):
    """Frames of 1080 x 1920 u16 as fast as the writer copies them from warm memory; the reader reads a word in each page."""
    size, time = 1080 * 1920 * 2, 100 if options.quick else 1000

    def rows(way):
        for name in ("ring", "ours", "iceoryx2"):
            label = ", events" if name == "iceoryx2" and way != "polling" else ""
            yield stream_case(name, "stream-rate", way, 1, size, time, label=label and LABELS[name] + label)

    return {"its reader polls": list(rows("polling")), "its reader waits": list(rows("two-cpus"))}


def stream_idle(options):
    """A reader that waits for a frame that does not come."""
    time = 500 if options.quick else 2000
    names = ("ring", "ours", "iceoryx2", *PYTHON_STREAMS)
    return {"": [stream_case(name, "stream-idle", time) for name in names]}


def stream_writer(options):
    """A frame of 64 bytes, for the writer of very many readers, and its parts."""
    parts = {
        "calls-lock": "fcntl(2), lock and unlock a slot",
        "calls-refused": "fcntl(2), the lock that the readers refuse",
        "calls-wake": "futex(2), wake",
    }

    def rows(kind, readers):
        count = (2000 if kind == "holding" else 100) // (5 if options.quick else 1)
        # Very many processes that are idle are not quite idle.
        how = {"fresh": readers > 1}
        yield stream_case("ours", "stream-writer", kind, readers, count, **how)
        for name, label in parts.items():
            if kind == "holding" or name != "calls-refused":
                yield stream_case(name, "stream-writer", kind, readers, count, label=label, role="part", **how)

    names = {"holding": "each reader holds a frame", "waiting": "each reader waits"}
    crowds = (1, 64, 256, 300)
    return {
        f"{title}, {counted(readers)}": list(rows(kind, readers)) for kind, title in names.items() for readers in crowds
    }


TOPICS = {
    "fill": fill,
    "attach": attach,
    "recycle": recycle,
    "many": many,
    "arena": arena,
    "small": small,
    "round-trip": round_trip,
    "stream-latency": stream_latency,
    "stream-rate": stream_rate,
    "stream-idle": stream_idle,
    "stream-writer": stream_writer,
}
