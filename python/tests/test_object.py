"""Tests stores over a bucket of versitygw, in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import config, unavailable
from test_blockd import PAGES, dump, found, pages

import kvlane


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    """Starts versitygw with an empty bucket, blocks, and returns its URL."""
    binary = os.environ.get("KVLANE_VERSITYGW")
    if not binary:
        unavailable("versitygw", "KVLANE_VERSITYGW does not name the binary")
    (tmp_path / "blocks").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as s:
        port = s.getsockname()[1]
    command = [str(binary), "--port", f"127.0.0.1:{port}", "--access", "kvlane", "--secret", "kvlane-secret", "--quiet"]
    with subprocess.Popen([*command, "posix", str(tmp_path)]) as server:
        try:
            end = time.monotonic() + 600
            while server.poll() is None and time.monotonic() < end:
                with socket.socket() as s:
                    if s.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.01)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.kill()


def run(name: str, endpoint: str, secret: str) -> None:
    """Calls a function below in a process of its own. It gets its credentials after it has loaded
    the library."""
    subprocess.run([sys.executable, __file__, name, endpoint, secret], check=True, timeout=600)


def test_blocks_outlive_a_store(endpoint: str) -> None:
    """A second store finds the blocks of the first in the bucket, and another prefix has none."""
    run("share", endpoint, "kvlane-secret")


def test_wrong_credentials(endpoint: str) -> None:
    """A store with wrong credentials has misses, and a note names the bucket."""
    run("refused", endpoint, "wrong")


def share(endpoint: str) -> None:
    kv = pages(0)
    # An operation that takes longer is a miss, also on a busy machine.
    good = {"object": "s3://blocks/here", "object_endpoint": endpoint, "object_timeout_ms": 60_000}
    with kvlane.Store(config(store=good)) as store:
        assert store.notes() == []
        dump(store, kv, 0)
    with kvlane.Store(config(store=good)) as store:
        assert found(store, kv, 0) == PAGES
    with kvlane.Store(config(store={**good, "object": "s3://blocks/there"})) as store:
        assert found(store, kv, 0) == 0


def refused(endpoint: str) -> None:
    kv = pages(0)
    bucket = {"object": "s3://blocks/here", "object_endpoint": endpoint}
    with kvlane.Store(config(store=bucket)) as store:
        assert any("s3://blocks/here" in note for note in store.notes())
        dump(store, kv, 0)
    with kvlane.Store(config(store=bucket)) as store:
        assert found(store, kv, 0) == 0
    with pytest.raises(kvlane.Invalid):
        kvlane.Store(config(store={"object": "blocks"}))


if __name__ == "__main__":
    kvlane.Store(config()).close()
    os.environ |= {
        "AWS_ACCESS_KEY_ID": "kvlane", "AWS_SECRET_ACCESS_KEY": sys.argv[3],
        "AWS_CONFIG_FILE": os.devnull, "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    }  # fmt: skip
    {"share": share, "refused": refused}[sys.argv[1]](sys.argv[2])
