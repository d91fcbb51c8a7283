"""Tests a store in a program that forks, and in a program with a low limit of file descriptors.
The programs run in their own processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import conftest

import kvlane

HOLDER = """
import json, os, sys, time
import kvlane
store = kvlane.Store(json.loads(sys.argv[1]))
if os.fork() == 0:
    print(os.getpid(), flush=True)  # after the library's handler for forks has run
    time.sleep(60)
    os._exit(0)
time.sleep(60)
"""


def test_a_forked_child_does_not_keep_the_lock_of_a_dead_program(tmp_path: Path) -> None:
    config = conftest.config(store={"log_dir": str(tmp_path / "log")})
    program = subprocess.Popen([sys.executable, "-c", HOLDER, json.dumps(config)], stdout=subprocess.PIPE, text=True)
    assert program.stdout is not None
    child = int(program.stdout.readline())
    try:
        program.kill()
        program.wait()
        kvlane.Store(config).close()  # raises Busy if the child still holds the lock
    finally:
        os.kill(child, signal.SIGKILL)
        program.stdout.close()


LIMITS = """
import json, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (512, 1024))
import kvlane
kvlane.Store(json.loads(sys.argv[1])).close()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""


def test_the_limit_on_descriptors_stays_the_programs() -> None:
    out = subprocess.run(
        [sys.executable, "-c", LIMITS, json.dumps(conftest.config())], stdout=subprocess.PIPE, text=True, check=True
    )
    assert out.stdout.split() == ["512", "1024"]


FEW = """
import ctypes, json, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (200, 200))
import kvlane
from kvlane.paged import Addresses
plane, n = int(sys.argv[2]), 64
store = kvlane.Store(json.loads(sys.argv[1]))
memory = ctypes.create_string_buffer(6 * plane * n)
at = ctypes.addressof(memory)
cache = kvlane.PagedCache(store, groups=[Addresses([at + i * plane * n for i in range(6)], n, plane, keep=memory)])
for prompt in range(8):
    task = store.dump(cache, store.token_keys([prompt, *range(1, 4 * n)], 4), range(n))
    task.wait(60)
    assert all(r.status == 0 for r in task.results()), prompt
taken = []
while len(taken) < 100:
    taken.append(open("/dev/null"))
store.close()
"""


def test_most_descriptors_are_the_programs(tmp_path: Path) -> None:
    store = {"dirs": [str(tmp_path / str(i)) for i in range(4)], "admission": "always"}
    plane = conftest.HEADS * conftest.SIZE * conftest.TOKENS * 4
    subprocess.run([sys.executable, "-c", FEW, json.dumps(conftest.config(store=store)), str(plane)], check=True)
