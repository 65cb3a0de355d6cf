"""A plugin of pytest for CloudVolume's own tests: they run with this package installed. It counts their transfers.

With the environment variable NDSHM_TEST_CACHE, they read through a cache of this name.
"""

from __future__ import annotations

import collections
import json
import os
from pathlib import Path
from typing import Any

import pytest

import ndshm
import ndshm.cloudvolume

#: How many transfers this package did (""), and how many it left to CloudVolume, by reason.
TRANSFERS: collections.Counter[str] = collections.Counter()


def counted(vol: Any, mip: int, write: bool) -> Any:
    plan = decide(vol, mip, write)
    TRANSFERS[plan if isinstance(plan, str) else ""] += 1
    return plan


decide = ndshm.cloudvolume.plan_of
ndshm.cloudvolume.plan_of = counted
CACHE = ndshm.ChunkCache(os.environ["NDSHM_TEST_CACHE"], "256MiB") if "NDSHM_TEST_CACHE" in os.environ else None
ndshm.cloudvolume.install(cache=CACHE)


def pytest_unconfigure(config: pytest.Config) -> None:
    if CACHE is None:
        Path(config.rootpath, "transfers.json").write_text(json.dumps(TRANSFERS))
        return
    found = CACHE.inspect()
    CACHE.unlink()
    Path(config.rootpath, "cache.json").write_text(json.dumps(found._asdict()))
