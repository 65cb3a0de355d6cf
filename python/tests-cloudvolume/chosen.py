"""A plugin of pytest that deselects tests by a pattern of their names, in the environment variable NDSHM_TEST_LEFT_OUT."""

from __future__ import annotations

import os
import re

import pytest


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    omitted = [item for item in items if re.search(os.environ["NDSHM_TEST_LEFT_OUT"], item.name)]
    items[:] = [item for item in items if item not in omitted]
    config.hook.pytest_deselected(items=omitted)
