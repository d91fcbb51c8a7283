"""Shared fixtures: stores for a small model's shape on the CPU, and arrays for its pages."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kvlane

LAYERS, HEADS, SIZE, TOKENS = 3, 2, 8, 4
MODEL = {"name": "tests", "dtype": "float32", "layers": LAYERS, "kv_heads": HEADS, "head_size": SIZE, "block_tokens": TOKENS}
CACHE = 64 << 20
FORKED = 7


def required(feature: str) -> bool:
    """Returns whether KVLANE_REQUIRE names the feature, so that its tests must run and not be
    skipped."""
    return feature in os.environ.get("KVLANE_REQUIRE", "").split(",")


def unavailable(feature: str, why: str) -> None:
    """Skips a test that lacks a feature, or fails it where KVLANE_REQUIRE names the feature."""
    if required(feature):
        pytest.fail(f"KVLANE_REQUIRE names {feature}: {why}")
    pytest.skip(why)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("torch") and importlib.util.find_spec("transformers"):
        return
    if required("torch"):
        raise pytest.UsageError("KVLANE_REQUIRE names torch, and torch or transformers is not there: see tools/python-env")
    for item in items:
        if item.get_closest_marker("torch"):
            item.add_marker(
                pytest.mark.skip(reason="needs torch and transformers: tools/python-env makes an environment with them")
            )


def config(**more: Any) -> dict[str, Any]:
    """Returns a configuration for the host device. Keyword arguments set its keys; dicts are
    merged into it."""
    out: dict[str, Any] = {"model": dict(MODEL), "revision": "r", "device": {"driver": "host"}, "store": {"cache_bytes": CACHE}}
    for k, v in more.items():
        if isinstance(v, dict) and k in out:
            out[k] = {**out[k], **v}
        else:
            out[k] = v
    return out


def in_child(call: Callable[[], object]) -> int:
    """Runs call in a child made by fork() and returns its exit status: FORKED if the call raised
    kvlane.Forked."""
    pid = os.fork()
    if pid == 0:
        try:
            call()
        except kvlane.Forked:
            os._exit(FORKED)
        finally:
            os._exit(1)
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    pytest.fail("the child hangs")


@pytest.fixture
def open_store() -> Iterator[Callable[..., kvlane.Store]]:
    """Returns a function that opens stores. All of them are closed, within a time limit, after the
    test."""
    stores: list[kvlane.Store] = []

    def open_it(**more: Any) -> kvlane.Store:
        stores.append(kvlane.Store(config(**more)))
        return stores[-1]

    yield open_it
    for s in stores:
        s.close(30)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Mounts a file system of 6 MiB and returns its path."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", str(disk)]
    if os.geteuid() != 0:
        unavailable("root", "mounting a file system takes root")
    mounted = subprocess.run(command, check=False, capture_output=True, text=True)
    if mounted.returncode:
        unavailable("root", f"{' '.join(command)}: {mounted.stderr.strip()}")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


@pytest.fixture
def dirs(tmp_path: Path) -> list[str]:
    return [str(tmp_path / "blocks")]
