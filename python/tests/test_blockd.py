"""Tests stores and a Manager over block servers in processes of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import HEADS, LAYERS, SIZE, TOKENS, config, unavailable

import kvlane
from kvlane import _lib
from kvlane.manager import ABSENT, REMOTE, Block

PAGES = 12
TOKEN = "0123456789abcdef"
TIME = {"remote_timeout_ms": 60_000}  # a request without an answer is a miss, also on a busy machine
Start = Callable[..., str]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Returns a function that starts a block server with options and returns its address."""
    if not os.environ.get("KVLANE_BINARY") and not (_lib.HERE / "kvlane").exists():
        unavailable("blockd", "KVLANE_BINARY does not name the binary")
    running: list[subprocess.Popen[str]] = []

    def begin(*options: str) -> str:
        command = [sys.executable, "-m", "kvlane", "blockd", "--listen", "127.0.0.1:0", "--cache-bytes", "64MiB", *options]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=tmp_path))
        out = running[-1].stdout
        assert out is not None
        (address,) = re.findall(r"^block server (127\.0\.0\.1:\d+);", out.readline())
        return str(address)

    yield begin
    for p in running:
        p.kill()
        p.communicate()


@pytest.fixture
def certificates(tmp_path: Path) -> Path:
    """Makes an authority, a server's and a client's certificate, and a file of tokens."""
    openssl = shutil.which("openssl")
    if openssl is None:
        unavailable("openssl", "there is no command openssl")
    (tmp_path / "tokens").write_text(f"team-a {TOKEN}\n")
    (tmp_path / "tokens").chmod(0o600)
    for name, token in (("token", TOKEN), ("wrong", "f" * 16)):
        (tmp_path / name).write_text(token + "\n")
        (tmp_path / name).chmod(0o600)
    new = [str(openssl), "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
    for name in ("server", "client"):
        more = ["-keyout", f"{name}.key", "-out", f"{name}.pem", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1"]
        subprocess.run([*new, *more], check=True, capture_output=True, cwd=tmp_path)
    return tmp_path


def pages(salt: int) -> Any:
    return np.random.default_rng(salt).standard_normal((LAYERS, 2, PAGES, TOKENS, HEADS, SIZE)).astype(np.float32)


def found(store: kvlane.Store, want: Any, salt: int) -> int:
    """Leases a prompt, loads what is found into zeroed pages, compares it, and returns its length."""
    got = np.zeros_like(want)
    with kvlane.PagedCache(store, got, "lkp") as cache:
        keys = store.token_keys([salt, *range(1, PAGES * TOKENS)], TOKENS)
        with store.lease(keys) as lease:
            n = lease.found
            store.load(cache, keys[:n], range(n), lease=lease).result(30)
    assert np.array_equal(got[:, :, :n], want[:, :, :n])
    return n


def dump(store: kvlane.Store, kv: Any, salt: int) -> None:
    with kvlane.PagedCache(store, kv, "lkp") as cache:
        keys = store.token_keys([salt, *range(1, PAGES * TOKENS)], TOKENS)
        store.dump(cache, keys, range(PAGES)).result(30)


def test_credentials(start: Start, certificates: Path) -> None:
    """Stores share blocks through servers with tokens, and with certificates of clients. A store
    without the credential has misses, and a note names the server."""
    tls = ["--tls-cert", "server.pem", "--tls-key", "server.key"]
    path = {name: str(certificates / name) for name in ("server.pem", "client.pem", "client.key", "token", "wrong")}
    by_token = {"remote": start(*tls, "--tokens", "tokens"), "remote_ca": path["server.pem"], "remote_token": path["token"]}
    by_cert = {
        "remote": start(*tls, "--tls-client-ca", "client.pem"), "remote_ca": path["server.pem"],
        "remote_cert": path["client.pem"], "remote_key": path["client.key"],
    }  # fmt: skip
    for salt, good in enumerate((by_token | TIME, by_cert | TIME)):
        kv = pages(salt)
        with kvlane.Store(config(store=good)) as store:
            assert store.notes() == []
            dump(store, kv, salt)
        with kvlane.Store(config(store=good)) as store:
            assert found(store, kv, salt) == PAGES
        none = {"remote": good["remote"], "remote_ca": path["server.pem"]}
        wrong = {**none, "remote_token": path["wrong"]}
        plain = {"remote": good["remote"]}
        for bad in (none, wrong, plain):
            with kvlane.Store(config(store=bad)) as store:
                assert any(good["remote"] in note for note in store.notes())
                assert found(store, kv, salt) == 0


def test_manager_over_block_servers(start: Start) -> None:
    """A Manager and a worker find the blocks of earlier ones in three servers. Jobs start within
    prompts, and carry anchors."""
    servers = {"remote": ",".join(start() for _ in range(3)), **TIME}
    prompts = [[Block(bytes([p, i]) * 8) for i in range(PAGES)] for p in range(6)]
    kv = pages(0)
    zeroed = np.zeros_like(kv)

    def keys(store: kvlane.Store, blocks: list[Block]) -> kvlane.Keys:
        return store.keys(b"".join(b.hash for b in blocks), hash_bytes=16)

    def prepare(store: kvlane.Store, job: kvlane.Job) -> kvlane.Keys:
        assert job.anchors is not None
        store.set_anchors(keys(store, job.blocks), job.anchors)
        return keys(store, job.blocks)

    c = config(store=servers)
    with kvlane.Manager([c]) as m, kvlane.Store(c) as store, kvlane.PagedCache(store, kv, "lkp") as cache:
        for blocks in prompts:
            assert set(m.lookup(blocks)) == {ABSENT}
            for part in (slice(0, 5), slice(5, PAGES)):
                job = m.store(blocks[part])
                store.dump(cache, prepare(store, job), range(PAGES)[part]).result(30)
                job.end()
        with pytest.raises(kvlane.Invalid):
            store.set_anchors(keys(store, prompts[0]), keys(store, prompts[0][:1]))
        with pytest.raises(kvlane.Invalid):
            m.set_anchors(prompts[0], prompts[0][:1])
    with kvlane.Manager([c]) as m, kvlane.Store(c) as store, kvlane.PagedCache(store, zeroed, "lkp") as cache:
        for blocks in prompts:
            assert m.lookup(blocks) == bytes([REMOTE]) * PAGES
            job = m.load(blocks[4:9])
            store.load(cache, prepare(store, job), range(4, 9)).result(30)
            job.end()
            assert np.array_equal(zeroed[:, :, 4:9], kv[:, :, 4:9])
            zeroed[:] = 0
        assert m.stats()["unanchored"] == 0
    with kvlane.Manager([c]) as m:  # a caller that starts within a prompt
        m.set_anchors(prompts[0][4:9], prompts[0][:1] * 5)
        assert m.lookup(prompts[0][4:9]) == bytes([REMOTE]) * 5
    with kvlane.Manager([config()]) as m:
        job = m.store(prompts[0])
        assert job.anchors is None
        job.end(range(PAGES))
