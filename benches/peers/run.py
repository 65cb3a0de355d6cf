"""Measures this library and its peers in one run: every case is a process of its own, and they take turns.

scripts/bench-peers builds what this needs and calls it; `--help` there says how. Nothing but the standard library.
"""

import argparse
import json
import os
import platform
import resource
import select
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
import report
from topics import MIB, TOPICS, Row

HERE = Path(__file__).parent
GIB = 1 << 30
PYTHON_PEERS = ["numpy", "torch", "cloud-volume", "SharedArray"]
RUST_PEERS = ["shared_memory", "memmap2", "ipc-channel", "iceoryx2", "rustix"]
# Those that pass streams.
STREAMING = {"numpy", "memmap2", "iceoryx2", "rustix"}


class Worker:
    """A process that answers lines with lines of JSON."""

    def __init__(self, options, row):
        script = "streams.py" if row.words[0].startswith("stream-") else "peers.py"
        program = [options.python, HERE / script] if row.python else [options.program]
        pin = ["taskset", "-c", row.cpus] if row.cpus else []
        self.complaints = tempfile.TemporaryFile("w+")
        limit = (row.descriptors, resource.getrlimit(resource.RLIMIT_NOFILE)[1])
        self.process = subprocess.Popen(
            pin + program + row.words,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.complaints,
            env=options.environment,
            text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, limit) if row.descriptors else None,
        )
        self.read()

    def ask(self, line):
        try:
            print(line, file=self.process.stdin, flush=True)
        except BrokenPipeError:
            pass  # its standard error has the reason
        return self.read()

    def read(self, limit=300):
        # The answer to one request is one line, so the buffer never holds a line that select() does not see.
        ready, _, _ = select.select([self.process.stdout], [], [], limit)
        line = self.process.stdout.readline() if ready else ""
        if line:
            reply = json.loads(line)
            if "error" in reply:
                raise RuntimeError(reply["error"])
            return reply
        if not ready:
            self.process.kill()
            raise RuntimeError(f"no answer for {limit} s")
        self.process.wait()
        self.complaints.seek(0)
        lines = self.complaints.read().strip().splitlines() or [f"ended with {self.process.returncode}"]
        raise RuntimeError(lines[-1])

    def end(self):
        try:
            self.process.stdin.close()
            self.process.wait(60)
        except (OSError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.complaints.close()


def stolen():
    """Returns the ticks that the host took from this virtual machine, and all ticks."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return ticks[7], sum(ticks)


def used_by_others():
    """Returns the ticks that programs beside this one and its cases have used."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    own, group = 0, os.getpgrp()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "stat").read_text().rsplit(")", 1)[1].split()
            except OSError:
                continue  # it has ended
            if int(words[2]) == group:
                own += sum(map(int, words[11:15]))
    return sum(ticks[:3]) + sum(ticks[5:7]) - own


# A sample is taken again if other programs use more than this share of all CPUs. The better one counts.
BUSY, TRIES = 0.05, 2


def measure(options, rows, repetitions):
    """Runs all cases in turn, `repetitions` times. Each time begins with another case."""
    workers, seen = {}, {"used": used_by_others(), "all": stolen()[1]}

    def end(row):
        if id(row) in workers:
            workers.pop(id(row)).end()

    def turn(row):
        if row.touch:
            options.machine.ask(f"touch {row.touch} {options.bytes * 3 // 2}")
        if id(row) not in workers:
            workers[id(row)] = Worker(options, row)
            if row.fresh:
                workers[id(row)].ask(row.line)
        tries = []
        while not tries or (tries[-1][0] > BUSY and len(tries) < TRIES):
            if tries:
                time.sleep(1)
            begin = stolen()
            sample = workers[id(row)].ask(row.line)
            end, used = stolen(), used_by_others()
            # From the end of the sample before: many samples take a few ticks only. One tick says nothing.
            others = max(used - seen["used"] - 1, 0) / max(end[1] - seen["all"], 1)
            tries.append((others, (end[0] - begin[0]) / max(end[1] - begin[1], 1), sample))
            seen.update(used=used, all=end[1])
        others, steal, sample = min(tries, key=lambda one: one[0])
        row.samples.append(sample)
        row.steal.append(steal)
        row.others.append(others)

    try:
        for repetition in range(repetitions):
            shift = repetition * len(rows) // repetitions
            for row in rows[shift:] + rows[:shift]:
                if row.missing:
                    continue
                try:
                    turn(row)
                except (RuntimeError, OSError, json.JSONDecodeError) as error:
                    row.missing = str(error)
                    print(f"  {row.label}: {error}", file=sys.stderr)
                if row.fresh or row.missing:
                    end(row)
    finally:
        for row in rows:
            end(row)


def summary(row):
    """Returns the medians of all measurements, and the samples."""
    result = {"label": row.label, "role": row.role}
    if not row.samples:
        return result | {"missing": row.missing or "not measured"}
    for key, value in row.samples[0].items():
        values = [sample[key] for sample in row.samples]
        if isinstance(value, (int, float)):
            result[key] = statistics.median(values)
            result[f"{key} samples"] = values
        else:
            result[key] = value
    shares = {"steal": sum(row.steal) / len(row.steal), "others": sum(row.others) / len(row.others)}
    return result | shares | ({"missing": row.missing} if row.missing else {})


def machine(options):
    """Returns the facts about the machine and its software."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = (line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    processor = next(models, platform.machine())
    pages = Path("/sys/kernel/mm/transparent_hugepage")
    facts = {
        "processor": processor,
        "CPUs": os.cpu_count(),
        "memory, GiB": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / GIB),
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "load before": f"{os.getloadavg()[0]:.1f}",
    }
    for name in ("enabled", "shmem_enabled"):
        if (pages / name).exists():
            chosen = (pages / name).read_text().split("[")[1].split("]")[0]
            facts[f"transparent_hugepage/{name}"] = chosen
    return facts


def versions(options):
    """Returns the version of every peer that the topics need, or None if it is not installed."""
    only_streams = options.topics and all(topic.startswith("stream-") for topic in options.topics)
    python, rust = ([name for name in names if not only_streams or name in STREAMING] for names in (PYTHON_PEERS, RUST_PEERS))
    script = "import importlib.metadata as m, json, sys\nfound = {}\nfor name in sys.argv[1:]:\n"
    script += "    try: found[name] = m.version(name)\n    except m.PackageNotFoundError: found[name] = None\n"
    script += "print(json.dumps(found | {'Python': sys.version.split()[0]}))"
    found = json.loads(subprocess.check_output([options.python, "-c", script, *python], text=True))
    lock = (HERE / "Cargo.lock").read_text().split("[[package]]")
    for name in rust:
        lines = [part.split('version = "')[1].split('"')[0] for part in lock if f'name = "{name}"\n' in part]
        found[name] = None if name in options.missing else max(lines, default=None)
    return found


def main():
    parser = argparse.ArgumentParser(prog="scripts/bench-peers")
    parser.add_argument("topics", nargs="*", metavar="topic", help=", ".join(TOPICS) + "; default: all")
    parser.add_argument("--quick", action="store_true", help="3 repetitions and 64 MiB: does it work?")
    parser.add_argument("--repetitions", type=int, help="default: 7")
    parser.add_argument("--mib", type=int, help="size of large arrays in MiB; default: 1024")
    parser.add_argument("--output", type=Path, required=True, help=argparse.SUPPRESS)
    parser.add_argument("--program", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--python", required=True, help=argparse.SUPPRESS)
    parser.add_argument("--missing", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    families = {topic: [name for name in TOPICS if name == topic or name.startswith(f"{topic}-")] for topic in options.topics}
    if unknown := [topic for topic, names in families.items() if not names]:
        parser.error(f"no such topic: {', '.join(unknown)}")
    options.topics = [name for names in families.values() for name in names]
    options.bytes = (options.mib or (64 if options.quick else 1024)) * MIB
    options.missing = options.missing.split()
    repetitions = options.repetitions or (3 if options.quick else 7)

    prefix = f"ndshm-bench-{os.getpid()}"
    options.environment = os.environ | {"BENCH_PREFIX": prefix, "NDSHM_MANAGER": "off"}
    try:
        options.machine = Worker(options, Row("", "", ["machine"]))
        begin = time.time()
        results = {"date": time.strftime("%Y-%m-%d"), "machine": machine(options), "versions": versions(options)}
        results |= {"bytes": options.bytes, "repetitions": repetitions, "quick": options.quick, "topics": {}}
        print(report.heading(results), flush=True)
        for topic in options.topics or TOPICS:
            groups = TOPICS[topic](options)
            for rows in groups.values():
                # How many fit is the same in every run, so one repetition is enough.
                measure(options, rows, 1 if topic == "many" else repetitions)
            results["topics"][topic] = {name: [summary(row) for row in rows] for name, rows in groups.items()}
            print(report.topic(results, topic), flush=True)
            options.output.write_text(json.dumps(results, indent=1))  # a run that is ended early has measured something
        results["seconds"] = round(time.time() - begin)
        options.machine.end()
    finally:
        for left in [*Path("/dev/shm").glob(f"{prefix}*"), *Path("/tmp").glob(f"{prefix}*")]:
            shutil.rmtree(left) if left.is_dir() else left.unlink(missing_ok=True)
    print("\n" + report.table(report.overview(results)))
    options.output.write_text(json.dumps(results, indent=1))
    print(f"{results['seconds']} s; samples in {options.output}")


if __name__ == "__main__":
    main()
