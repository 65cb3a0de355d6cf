"""The adopter: tries the package on data of their own, after the guide on volumes and the one on troubleshooting."""

from __future__ import annotations

import socket
import time

import pytest

import ndshm


def _closed_port() -> int:
    """A port of the loopback on which nothing listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.fixture(autouse=True)
def _as_usual(monkeypatch):
    for variable in ("NDSHM_RETRY_SECONDS", "HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)


def test_mistyped_address_fails_soon_and_says_why():
    url = f"precomputed://http://127.0.0.1:{_closed_port()}/em"
    for call in (lambda: ndshm.download(url).result(), lambda: ndshm.info(url)):
        begin = time.monotonic()
        with pytest.raises(ndshm.StoreError, match="host `127.0.0.1` refuses connections.*check the address.*NDSHM_RETRY_SECONDS"):
            call()
        # A server that has answered once would be waited for during two minutes.
        assert time.monotonic() - begin < 60


def test_waiting_download_says_what_it_waits_for(monkeypatch):
    monkeypatch.setenv("NDSHM_RETRY_SECONDS", "600")
    url = f"precomputed://http://127.0.0.1:{_closed_port()}/em"
    download = ndshm.download(url)
    try:
        limit = time.monotonic() + 60
        while download.progress.retrying is None:
            assert time.monotonic() < limit and not download.done()
            time.sleep(0.01)
        progress = download.progress
        assert len(progress) == 6 and progress.retrying is not None
        assert "retrying `http://127.0.0.1:" in progress.retrying and "onnect" in progress.retrying
        assert "retrying `http://127.0.0.1:" in repr(download)
        with pytest.raises(ndshm.TimedOut, match="after 0.2 seconds, retrying `http://127.0.0.1:.*; it goes on"):
            download.result(timeout=0.2)
    finally:
        download.cancel()
    with pytest.raises(ndshm.Cancelled):
        download.result()
    assert download.progress.retrying is None
