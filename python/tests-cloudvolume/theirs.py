"""Runs CloudVolume's own tests, as they are, with this package, and also with a cache, and prints a table by name.

    theirs.py ARCHIVE FOLDER        those of shared memory, files and worker processes, and of reading and writing
    theirs.py ARCHIVE FOLDER --all  all of `test_cloudvolume.py`

ARCHIVE is CloudVolume's source archive. Its tests are copied to FOLDER, with paths there in place of those in `/tmp`. The exit status
is 1 if a test fails that is not in `LEFT_OUT`.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path
from xml.etree import ElementTree

import psutil

FILES = ("test_sharedmemory.py", "test_cloudvolume.py")

#: Tests that are not run, by a pattern of their names, and why.
LEFT_OUT = {
    r"test_cloud_access|test_parallel_read(_shm)?\b": "needs gs:// and s3:// (test_transfers.py reads in parallel from files)",
    r"test_info_provenance_cache": "needs gs://",
    r"test_read_sharded_renumber|test_download_crackle_flag|test_point_reads_sharded|test_unique_sharded": (
        "needs a volume that the archive lacks"
    ),
    r"compresso|crackle|test_write_zfpc": "needs an optional encoding of CloudVolume: compresso, crackle or zfpc",
    r"test_save_images": "needs an optional package of CloudVolume: pillow",
    r"test_transfer_lossy": "needs an optional encoding of CloudVolume: jxl",
}
#: Tests that this package cannot change, since they neither share memory nor write: only with --all.
SLOW = r"test_point_reads_unsharded|test_read_binary_image|test_unique|test_caching|test_aligned_read|test_exists|test_delete\["
#: Slow tests of what a cache cannot change, which are not run with one: writes by worker processes, and the module of
#: shared memory.
NOT_CACHED = r"test_parallel_write|test_parallel_shared_memory_write|test_ndarray_sh"


def unpack(archive: Path, folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with tarfile.open(archive) as tar:
        for member in tar.getmembers():
            name = os.path.basename(member.name)
            if os.path.basename(os.path.dirname(member.name)) != "test" or name not in FILES:
                continue
            file = tar.extractfile(member)
            assert file is not None
            # `from_numpy` has a default path in /tmp/image, which the tests remove there.
            text = re.sub(r"/tmp/(?!image)", f"{folder}/tmp/", file.read().decode())
            (folder / name).write_text(text)
    assert all((folder / name).exists() for name in FILES), "the archive lacks tests"
    (folder / "pytest.ini").write_text("[pytest]\n")


def run(folder: Path, plugin: str | None, deselected: str, cache: str | None = None) -> dict[str, str]:
    """Return the outcome of each test, with this package's plugin and a cache of this name, if there are any."""
    label = f"{plugin}-cache" if cache else plugin
    report = folder / f"report-{label}.xml"
    (folder / "tmp").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", f"--junitxml={report}", "-p", "chosen"]
    command += ["-p", plugin] if plugin else []
    here = os.path.dirname(__file__)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([here, os.environ.get("PYTHONPATH", "")]), "NDSHM_TEST_LEFT_OUT": deselected}
    environment |= {"NDSHM_TEST_CACHE": cache} if cache else {}
    with open(folder / f"log-{label}.txt", "wb") as log:
        subprocess.run([*command, *FILES], cwd=folder, env=environment, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL)
    shutil.rmtree(folder / "tmp", ignore_errors=True)
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        worst = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        found[f"{case.get('classname')}.{case.get('name')}"] = worst[0] if worst else "passed"
    return found


def left_out() -> dict[str, str]:
    """Return what is left out on this machine."""
    memory, room = psutil.virtual_memory().available, shutil.disk_usage("/dev/shm").free
    if room > 0.45 * memory:
        return LEFT_OUT
    why = "needs a shared memory of 45 % of the free memory, since this package reserves it (python/tests/test_sharedmemory_module.py needs less)"
    return {**LEFT_OUT, "test_ndarray_sh": why}


def main() -> int:
    archive, folder = Path(sys.argv[1]), Path(sys.argv[2]).resolve()
    unpack(archive, folder)
    omitted = left_out()
    deselected = "|".join([*omitted, *([] if sys.argv[3:] == ["--all"] else [SLOW])])
    begun = time.monotonic()
    original, installed = run(folder, None, deselected), run(folder, "with_ndshm", deselected)
    cached = run(folder, "with_ndshm", f"{deselected}|{NOT_CACHED}", f"py-cv-theirs-{os.getpid()}")
    width = max(map(len, installed))
    print(f"{'test of CloudVolume':{width}}  CloudVolume  with ndshm  with a cache")
    for name, outcome in installed.items():
        print(f"{name:{width}}  {original.get(name, '-'):11}  {outcome:10}  {cached.get(name, '-')}")
    for pattern, why in omitted.items():
        print(f"left out: {pattern}: {why}")
    if sys.argv[3:] != ["--all"]:
        print(f"left out without --all: {SLOW}")
    transfers = json.loads((folder / "transfers.json").read_text())
    print(f"transfers by the four methods: {transfers.pop('', 0)} by ndshm; left to CloudVolume: {transfers}")
    chunks = json.loads((folder / "cache.json").read_text())
    print(f"not run with a cache: {NOT_CACHED}")
    print(f"chunks of CloudVolume's own reads: {chunks['hits']} found, {chunks['fills']} cached, {chunks['unversioned']} too new to be cached")
    passed, through = (sum(outcome == "passed" for outcome in outcomes.values()) for outcomes in (installed, cached))
    before = sum(outcome == "passed" for outcome in original.values())
    print(
        f"{passed} of {len(installed)} passed with ndshm, {through} of {len(cached)} with a cache, {before} of {len(original)} without, "
        f"in {time.monotonic() - begun:.0f} s"
    )
    is_used = chunks["hits"] + chunks["fills"] + chunks["unversioned"] > 0
    is_right = passed == len(installed) and through == len(cached) and original.keys() == installed.keys()
    if not is_right or not passed or not through or not is_used:
        print(f"see {folder}/log-with_ndshm.txt and log-with_ndshm-cache.txt")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
