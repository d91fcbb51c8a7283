"""Tests the metrics of stores and managers, and the addresses at which an engine's processes serve
them."""

from __future__ import annotations

import http.client
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvlane import Manager, Store, errors
from kvlane._metrics import address, opened

MODEL = {"name": "m", "dtype": "int8", "layers": 1, "kv_heads": 1, "head_size": 64, "block_tokens": 16}


def config(**more: Any) -> dict[str, Any]:
    return {"model": MODEL, "device": {"driver": "host"}, "store": {"cache_bytes": 1 << 20}, **more}


class OnSocket(http.client.HTTPConnection):
    """An HTTP connection over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(str(self._path))


def page(path: Path, name: str) -> tuple[int, str]:
    connection = OnSocket(path)
    connection.request("GET", name)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, body


def test_store_and_manager_have_metrics(tmp_path: Path) -> None:
    with Store(config(metrics_addr=f"unix:{tmp_path}/{{pid}}-{{rank}}.sock")) as store:
        path = tmp_path / f"{os.getpid()}-0.sock"
        assert path.stat().st_mode & 0o777 == 0o600
        assert page(path, "/readyz") == (200, "ready\n")
        status, text = page(path, "/metrics")
        assert status == 200
        for served in (text, store.metrics()):
            assert "\nkvlane_store_loads_total 0\n" in served
    assert not path.exists()
    with Manager([config()], metrics_addr=f"unix:{tmp_path}/{{rank}}.sock") as manager:
        _, text = page(tmp_path / "scheduler.sock", "/metrics")
        for served in (text, manager.metrics()):
            assert "\nkvlane_manager_blocks 0\n" in served


# If the address is taken, a Store raises an error, but an engine logs a warning and its store works
# without metrics.
def test_taken_address(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        served = config(metrics_addr=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(errors.Error, match=r"serve metrics on .* address already in use"):
            Store(served)
        with caplog.at_level(logging.WARNING), opened(Store, served, logging.getLogger("kvlane.test")) as store:
            assert "kvlane_build_info" in store.metrics()
        assert "metrics are not served" in caplog.text
    with pytest.raises(errors.Invalid, match="metrics_addr"):
        opened(Store, config(metrics_addr="nowhere"), logging.getLogger("kvlane.test"))


HOLDER = """
import json, os, sys, time
import kvlane
store = kvlane.Store(json.loads(sys.argv[1]))
child = os.fork()
if child == 0:
    time.sleep(600)
    os._exit(0)
print(child, flush=True)
time.sleep(600)
"""


# A forked child must not keep the address after its parent has died.
def test_a_forked_child_does_not_listen() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    served = config(metrics_addr=f"127.0.0.1:{port}")
    with subprocess.Popen([sys.executable, "-c", HOLDER, json.dumps(served)], stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        child = int(program.stdout.readline())
        try:
            program.kill()
            program.wait()
            Store(served).close()
        finally:
            os.kill(child, signal.SIGKILL)


# The scheduler serves at PORT. The workers use the following ports, replica after replica.
@pytest.mark.parametrize(
    ("addr", "rank", "replica", "want"),
    [
        (":9400", None, 0, ":9400"),
        ("0.0.0.0:9400", 0, 0, "0.0.0.0:9401"),
        (":9400", 1, 0, ":9402"),
        (":9400", None, 1, ":9403"),
        ("[::1]:9400", 1, 2, "[::1]:9408"),
        ("unix:/run/{pid}-{rank}.sock", None, 0, "unix:/run/{pid}-scheduler.sock"),
        ("unix:/run/{rank}.sock", None, 1, "unix:/run/scheduler1.sock"),
        ("unix:/run/{rank}.sock", 1, 2, "unix:/run/5.sock"),
    ],
)
def test_addresses_of_an_engine(addr: str, rank: int | None, replica: int, want: str) -> None:
    assert address(addr, 2, rank, replica) == want


@pytest.mark.parametrize("addr", ["nowhere", "9400", "host:http", ":65535", ":0"])
def test_wrong_addresses_of_an_engine(addr: str) -> None:
    with pytest.raises(errors.Invalid, match="metrics_addr"):
        address(addr, 2, 0)
