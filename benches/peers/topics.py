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


TOPICS = {
    "fill": fill,
    "attach": attach,
    "recycle": recycle,
    "many": many,
    "arena": arena,
    "small": small,
    "round-trip": round_trip,
}
