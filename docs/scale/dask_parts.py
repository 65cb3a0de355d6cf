"""Copies a volume into another one that is there, part by part, with Dask; each part is an array in shared memory on its way.

    python dask_parts.py SOURCE TARGET --parts 16 --done DIRECTORY [--scheduler ADDRESS] [--invert]

Without --scheduler the parts are done by processes of this machine. The same command again does only what is missing.
"""

import argparse
import json
import mmap
import os
import pathlib
import subprocess
import sys

import dask
import numpy


def ndshm(*arguments):
    """Runs ndshm, which says what went wrong in its standard error; returns what it prints as JSON."""
    finished = subprocess.run(["ndshm", *arguments], capture_output=True, text=True)
    if finished.returncode != 0:
        raise RuntimeError(f"ndshm {' '.join(arguments)}: {finished.stderr.strip()}")
    return json.loads(finished.stdout)


def change(path, dtype, shape):
    """Your work: the array is a file of nothing but its elements, and is changed in place."""
    with open(path, "r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
        array = numpy.frombuffer(memory, dtype=dtype).reshape(shape)
        numpy.invert(array, out=array)
        del array


def do_part(source, target, part, done, invert):
    """Does one part, unless that was done; returns what went wrong, or None. Nothing that fails here stops the others."""
    marker = pathlib.Path(done) / f"part-{part['index']:05}.json"
    work = {"source": source, "target": target, "invert": invert, "part": part}
    if marker.exists() and json.loads(marker.read_text()) == work:
        return None
    array = f"ndshm-dask-{os.getpid()}-{part['index']}"
    region = f"--bbox={part['bbox']}"
    try:
        try:
            made = ndshm("download", source, array, region, "--replace", "--quiet", "--json")
            if invert:
                change(made["path"], made["dtype"], made["shape"])
            ndshm("upload", array, target, region, "--order", "c", "--quiet", "--json")
        finally:
            subprocess.run(["ndshm", "unlink", array], capture_output=True)
        # After its data, in one step: a marker that is there is whole, and what it says is true.
        new = marker.with_suffix(f".{os.getpid()}.new")
        new.write_text(json.dumps(work))
        new.replace(marker)
    except Exception as error:
        return f"part {part['shard']}: {error}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("source")
    parser.add_argument("target")
    parser.add_argument("--parts", type=int, required=True)
    parser.add_argument("--done", required=True)
    parser.add_argument("--scheduler")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--invert", action="store_true")
    arguments = parser.parse_args()
    os.makedirs(arguments.done, exist_ok=True)
    # The target is divided, not the source: no two parts write the same stored object.
    plan = ndshm("plan", arguments.target, "--shards", str(arguments.parts), "--json")
    tasks = [
        dask.delayed(do_part)(arguments.source, arguments.target, part, arguments.done, arguments.invert)
        for part in plan["parts"]
        if part["bbox"] is not None
    ]
    if arguments.scheduler:
        from dask.distributed import Client

        with Client(arguments.scheduler) as client:
            failures = client.gather(client.compute(tasks))
    else:
        failures = dask.compute(*tasks, scheduler="processes", num_workers=arguments.workers)
    failures = [failure for failure in failures if failure]
    for failure in failures:
        print(failure, file=sys.stderr)
    print(f"{len(tasks) - len(failures)} of {len(tasks)} parts are done")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
