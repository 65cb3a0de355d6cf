"""Downloads of volumes into shared memory, and uploads of JPEG, beside peers, in one run. Each case has a process of its own, and the
cases take turns.

    volumes.py --program PATH --place DIRECTORY [--quick] [--repeat N] [--turbojpeg] [--write-docs FILE]

`volumes.py peer KIND VOLUME` is one such process. It answers each line of its standard input with a line of JSON.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random

MIB = 1 << 20
CHUNK = 64
SIZES = {"raw": (1024, 1024, 512), "gzip": (512, 512, 256), "jpeg": (512, 512, 256)}
QUICK = {"raw": (256, 256, 256), "gzip": (256, 256, 128), "jpeg": (256, 256, 128)}
QUALITY = 85  # of JPEG: the default of this library and of CloudVolume
BUSY = 0.5  # processors that other processes may keep busy before a row is marked
SEED = 6


# --- peers ---------------------------------------------------------------------------------------------------------------------


def cloudvolume(path, parallel):
    from cloudvolume import CloudVolume

    volume = CloudVolume(f"precomputed://file://{path}", parallel=parallel, progress=False, cache=False, lru_bytes=0)

    def case():
        location = f"bench-cloudvolume-{os.getpid()}"
        begin = time.perf_counter()
        image = volume.download_to_shared_memory(volume.bounds, location)
        seconds = time.perf_counter() - begin
        total = int(image[::64, ::64, ::64].sum())
        del image
        os.unlink(f"/dev/shm/{location}")
        return seconds, total

    return case


def tensorstore(path, shared):
    from multiprocessing import shared_memory

    import numpy
    import tensorstore as ts

    context = ts.Context({"cache_pool": {"total_bytes_limit": 0}})
    driver = "zarr3" if path.endswith(".zarr") else "neuroglancer_precomputed"
    store = ts.open({"driver": driver, "kvstore": f"file://{path}/"}, context=context, open=True).result()

    def private():
        begin = time.perf_counter()
        array = store.read().result()
        seconds = time.perf_counter() - begin
        return seconds, int(array[::64, ::64, ::64].sum())

    def copied():
        begin = time.perf_counter()
        memory = shared_memory.SharedMemory(create=True, size=store.size * store.dtype.numpy_dtype.itemsize)
        array = numpy.ndarray(store.shape, store.dtype.numpy_dtype, buffer=memory.buf)
        array[...] = store.read().result()
        seconds = time.perf_counter() - begin
        total = int(array[::64, ::64, ::64].sum())
        del array
        memory.close()
        memory.unlink()
        return seconds, total

    return copied if shared else private


def elements(path):
    """Returns the elements to upload, in private memory."""
    import tensorstore as ts

    return ts.open({"driver": "neuroglancer_precomputed", "kvstore": f"file://{path}/"}, open=True).result().read().result()


def new_info(path):
    """Returns a new description like a volume's, and a directory in memory for its chunks, so that no disk is measured."""
    info = json.loads((Path(path) / "info").read_text())
    info["scales"][0]["jpeg_quality"] = QUALITY
    return info, tempfile.mkdtemp(prefix="bench-volumes-", dir="/dev/shm")


def stored(directory):
    return sum(file.stat().st_size for file in Path(directory).rglob("*") if file.is_file())


def cloudvolume_upload(path):
    from cloudvolume import CloudVolume

    data = elements(path)

    def case():
        info, directory = new_info(path)
        volume = CloudVolume(f"precomputed://file://{directory}", info=info, compress=False, progress=False, parallel=1)
        volume.commit_info()
        begin = time.perf_counter()
        volume[...] = data
        seconds = time.perf_counter() - begin
        total = stored(directory)
        shutil.rmtree(directory)
        return seconds, total

    return case


def tensorstore_upload(path):
    import tensorstore as ts

    data = elements(path)

    def case():
        info, directory = new_info(path)
        (Path(directory) / "info").write_text(json.dumps(info))
        context = ts.Context({"cache_pool": {"total_bytes_limit": 0}})
        spec = {"driver": "neuroglancer_precomputed", "kvstore": f"file://{directory}/"}
        store = ts.open(spec, context=context, open=True).result()
        begin = time.perf_counter()
        store.write(data).result()
        seconds = time.perf_counter() - begin
        total = stored(directory)
        shutil.rmtree(directory)
        return seconds, total

    return case


def peak():
    """Returns the peak memory of this process, including mapped shared memory."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None


def peer(kind, path):
    case = {
        "cloudvolume-1": lambda: cloudvolume(path, 1),
        "cloudvolume-2": lambda: cloudvolume(path, 2),
        "tensorstore": lambda: tensorstore(path, True),
        "tensorstore-private": lambda: tensorstore(path, False),
        "cloudvolume-upload": lambda: cloudvolume_upload(path),
        "tensorstore-upload": lambda: tensorstore_upload(path),
    }[kind]()
    for _line in sys.stdin:
        seconds, total = case()
        print(json.dumps({"seconds": seconds, "total": total, "peak": peak()}), flush=True)


# --- volumes -------------------------------------------------------------------------------------------------------------------


def write(place, encoding, shape):
    """Writes the same elements as Zarr v3, if it has the encoding, and as Precomputed, unless they exist. Returns the paths."""
    name = f"{encoding}-" + "x".join(map(str, shape))
    zarr, precomputed = place / f"{name}.zarr", place / f"{name}.precomputed"
    done = place / f"{name}.done"
    if not done.exists():
        import numpy
        from cloudvolume import CloudVolume

        # A smooth field with noise in its lower four bits: compresses about as well as a microscope image.
        random = numpy.random.default_rng(7)
        axes = [numpy.sin(numpy.arange(length) / 37.0) for length in shape]
        field = axes[0][:, None, None] + axes[1][None, :, None] + axes[2][None, None, :]
        data = ((field + 3) * 36).astype(numpy.uint8)
        data += random.integers(0, 16, size=shape, dtype=numpy.uint8)
        if encoding != "jpeg":
            write_zarr(zarr, encoding, shape, data)
        info = CloudVolume.create_new_info(
            num_channels=1, layer_type="image", data_type="uint8", encoding="jpeg" if encoding == "jpeg" else "raw",
            resolution=[1, 1, 1], voxel_offset=[0, 0, 0], volume_size=list(shape), chunk_size=[CHUNK] * 3,
        )
        volume = CloudVolume(f"precomputed://file://{precomputed}", info=info, compress="gzip" if encoding == "gzip" else False,
                             progress=False)
        volume.commit_info()
        volume[...] = data[..., None]
        done.touch()
    return {"precomputed": precomputed} if encoding == "jpeg" else {"zarr": zarr, "precomputed": precomputed}


def write_zarr(path, encoding, shape, data):
    import tensorstore as ts

    codecs = [{"name": "bytes"}] + ([{"name": "gzip", "configuration": {"level": 6}}] if encoding == "gzip" else [])
    chunks = {"name": "regular", "configuration": {"chunk_shape": [CHUNK] * 3}}
    metadata = {"shape": shape, "data_type": "uint8", "chunk_grid": chunks, "codecs": codecs}
    spec = {"driver": "zarr3", "kvstore": f"file://{path}", "metadata": metadata}
    ts.open(spec, create=True, delete_existing=True).result().write(data).result()


def warm(path):
    for file in path.rglob("*"):
        if file.is_file():
            file.read_bytes()


def machine_time():
    """Returns the seconds that all processors together have worked, for all processes."""
    user, nice, system, _idle, _waiting, *interrupts = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


# --- the run -------------------------------------------------------------------------------------------------------------------


class Case:
    """A process that answers lines, and its answers."""

    def __init__(self, title, role, command, line, results):
        self.title, self.role, self.line = title, role, line
        self.answers, self.error = [], None
        quiet = subprocess.DEVNULL
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=quiet, text=True)
        results.append(self)

    def turn(self, keep):
        if self.error:
            return
        try:
            before, begin, busy = self.processor_time(), time.perf_counter(), machine_time()
            self.process.stdin.write(self.line + "\n")
            self.process.stdin.flush()
            answer = json.loads(self.process.stdout.readline() or '{"error": "it ended"}')
            answer["cpu"] = self.processor_time() - before
            answer["others"] = (machine_time() - busy - answer["cpu"]) / (time.perf_counter() - begin)
        except (OSError, ValueError) as error:
            answer = {"error": str(error)}
        if "error" in answer:
            self.error = answer["error"].splitlines()[-1][:160]
        elif keep:
            self.answers.append(answer)

    def processor_time(self):
        """Returns the processor time of the process and its ended children, in seconds."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def end(self):
        try:
            self.process.communicate(timeout=60)
        except OSError:
            self.process.kill()

    def median(self, *keys):
        def value(answer):
            for key in keys:
                answer = answer[key]
            return answer

        return statistics.median(value(answer) for answer in self.answers)


def measure(arguments, encoding, shape, paths):
    this = [sys.executable, __file__, "peer"]
    ours = [arguments.program, "serve"]
    cases = []
    for kind, title in [("cloudvolume-1", "CloudVolume, parallel=1"), ("cloudvolume-2", "CloudVolume, parallel=2")]:
        Case(f"{title}, Precomputed", "peer", [*this, kind, str(paths["precomputed"])], "go", cases)
    titles = {"zarr": "Zarr v3", "precomputed": "Precomputed"}
    theirs = "zarr" if "zarr" in paths else "precomputed"
    Case(f"tensorstore, copied into SharedMemory, {titles[theirs]}", "peer", [*this, "tensorstore", str(paths[theirs])], "go", cases)
    private = [*this, "tensorstore-private", str(paths[theirs])]
    Case(f"tensorstore, private memory, {titles[theirs]}", "other", private, "go", cases)
    for name, path in paths.items():
        for line, how in [("threads 2", "2 threads"), ("processes 2", "2 processes"), ("threads 2 F", "2 threads, F order"),
                          ("threads 1", "1 thread")]:
            Case(f"ndarray-shm, {how}, {titles[name]}", "ours", [*ours, str(path)], line, cases)
    take_turns(arguments, cases)
    return table(f"{encoding}{library(arguments, encoding)}", shape, cases)


def measure_uploads(arguments, encoding, shape, path):
    """Measures uploads into a new Precomputed volume in memory: the peers from private memory, this library from shared memory."""
    this = [sys.executable, __file__, "peer"]
    cases = []
    Case("CloudVolume, parallel=1", "peer", [*this, "cloudvolume-upload", str(path)], "go", cases)
    Case("tensorstore", "peer", [*this, "tensorstore-upload", str(path)], "go", cases)
    for count in (2, 1):
        title = f"ndarray-shm, {count} thread{'s' if count > 1 else ''}"
        Case(title, "ours", [arguments.program, "serve", str(path)], f"upload {count}", cases)
    take_turns(arguments, cases)
    return table(f"{encoding}{library(arguments, encoding)}, uploads", shape, cases)


def library(arguments, encoding):
    return " by libjpeg-turbo" if encoding == "jpeg" and arguments.turbojpeg else ""


def take_turns(arguments, cases):
    random = Random(SEED)
    for repetition in range(arguments.repeat + 1):
        # A random order, so that no case always follows the same one, which may have freed its memory in pieces.
        for case in random.sample(cases, len(cases)):
            case.turn(repetition > 0)
    for case in cases:
        case.end()


def table(encoding, shape, cases):
    size = shape[0] * shape[1] * shape[2]
    peers = [case for case in cases if case.role == "peer" and case.answers]

    def times(case, measure):
        return f"{min(map(measure, peers)) / max(measure(case), 1e-9):.2f}" if peers else ""

    def median(case):
        return case.median("seconds")

    def best(case):
        return min(answer["seconds"] for answer in case.answers)

    def cpu(case):
        return case.median("cpu")

    phases = ("making", "claiming", "fetching", "decoding", "copying")
    lines = [
        f"### {encoding}, {size // MIB} MiB, u8, chunks of {CHUNK}^3",
        "",
        "| | GB/s | x | best GB/s | x | CPU s per GB | x | beyond the array, MiB | " + " | ".join(phases) + " | faults |",
        "|---|" + "---:|" * (8 + len(phases)),
    ]
    for case in cases:
        if case.error or not case.answers:
            lines.append(f"| {case.title}: {case.error} |" + " |" * (8 + len(phases)))
            continue
        row = [case.title + (" *" if case.median("others") > BUSY else ""), f"{size / median(case) / 1e9:.2f}", times(case, median)]
        row += [f"{size / best(case) / 1e9:.2f}", times(case, best), f"{cpu(case) * 1e9 / size:.2f}", times(case, cpu)]
        row.append(f"{(max(answer['peak'] for answer in case.answers) - size) / MIB:.0f}")
        if "spent" in case.answers[0]:
            row += [f"{case.median('spent', phase) * 1e3:.0f} ms" for phase in phases]
            row.append(f"{case.median('faults'):.0f}")
        else:
            row += [""] * (len(phases) + 1)
        lines.append("| " + " | ".join(row) + " |")
    lines += [
        "",
        "GB/s are medians; x is how many times the best peer that ends in shared memory. Processor time, of children too, also says "
        "something on a machine that others use. The phases are summed over the workers. Memory of child processes is not in the peak. "
        "The cases take turns in an order that is random each time, from a fixed seed: what one frees is never always for the same other.",
        running(cases),
        disturbed(cases),
        "",
    ]
    return "\n".join(lines)


def disturbed(cases):
    """Returns a note on how busy other processes kept the machine during the measurements."""
    others = [case.median("others") for case in cases if case.answers]
    if not others or max(others) <= BUSY:
        return ""
    return (f"\\* measured while other processes kept more than {BUSY} processors busy (medians: {min(others):.1f} to "
            f"{max(others):.1f}): these rows say little.")


def running(cases):
    """Compares processes with threads by the time that their workers worked, without starting them and creating the array."""

    def busy(case):
        return sum(case.median("spent", phase) for phase in ("claiming", "fetching", "decoding", "copying"))

    words = []
    for name in ("Zarr v3", "Precomputed"):
        pair = [case for case in cases if case.title in (f"ndarray-shm, 2 threads, {name}", f"ndarray-shm, 2 processes, {name}")]
        if len(pair) == 2 and all(case.answers for case in pair):
            threads, processes = pair
            words.append(f"{name}: once running, 2 processes do {busy(threads) / busy(processes):.2f} times what 2 threads do.")
    return " ".join(words)


def main():
    if sys.argv[1:2] == ["peer"]:
        return peer(sys.argv[2], sys.argv[3])
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", required=True)
    parser.add_argument("--place", type=Path, required=True)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", choices=sorted(SIZES))
    parser.add_argument("--turbojpeg", action="store_true", help="the program was built with that feature")
    parser.add_argument("--write-docs", type=Path)
    arguments = parser.parse_args()
    arguments.place.mkdir(parents=True, exist_ok=True)
    tables = []
    for encoding, shape in (QUICK if arguments.quick else SIZES).items():
        if arguments.only not in (None, encoding):
            continue
        paths = write(arguments.place, encoding, shape)
        for path in paths.values():
            warm(path)
        tables.append(measure(arguments, encoding, shape, paths))
        print(tables[-1], flush=True)
        if encoding == "jpeg":
            tables.append(measure_uploads(arguments, encoding, shape, paths["precomputed"]))
            print(tables[-1], flush=True)
    if arguments.write_docs:
        mark, end = "<!-- generated: volumes -->\n", "<!-- end -->"
        text = arguments.write_docs.read_text()
        if mark not in text:
            text += f"\n## Volumes\n\n{mark}{end}\n"
        head, rest = text.split(mark, 1)
        arguments.write_docs.write_text(head + mark + "\n".join(tables) + "\n" + end + rest.split(end, 1)[1])


if __name__ == "__main__":
    main()
