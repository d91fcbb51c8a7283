"""Forks the programs that import vLLM, such as its servers, from a process that has imported it.
forks/sitecustomize.py, in the program's interpreter, connects to the socket KVLANE_FORKS."""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import queue
import runpy
import signal
import socket
import sys
import threading
import traceback
from typing import Any
from unittest import mock

import torch


def fork_processes() -> None:
    """Makes vLLM fork its scheduler and workers. On CPUs it spawns them, and each would import
    vLLM again, which takes many seconds."""
    context = multiprocessing.get_context("fork")
    mock.patch.object(multiprocessing, "get_context", return_value=context).start()


def accept(connections: queue.Queue[Any]) -> None:
    """Accepts connections of programs."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(os.environ["KVLANE_FORKS"])
    listener.listen()
    while True:
        connections.put(listener.accept()[0])


def fork(connection: socket.socket) -> None:
    """Runs the program of a connection in a child, whose exit code is sent when it has ended."""
    size, outputs, _, _ = socket.recv_fds(connection, 4, 2)
    plan = connection.recv(int.from_bytes(size, "little"), socket.MSG_WAITALL)
    pid = os.fork()
    if pid == 0:
        child(connection, outputs, json.loads(plan))
    for fd in outputs:
        os.close(fd)
    threading.Thread(target=answer, args=(pid, connection), daemon=True).start()


def answer(pid: int, connection: socket.socket) -> None:
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    with contextlib.suppress(OSError):
        connection.sendall((code & 0xFF).to_bytes(4, "little"))
    connection.close()


def child(connection: socket.socket, outputs: list[int], plan: dict[str, Any]) -> None:
    os.setsid()
    threading.Thread(target=obey, args=(connection,), daemon=True).start()
    for i, fd in enumerate(outputs):
        os.dup2(fd, 1 + i)
        os.close(fd)
    code = 1
    try:
        os.environ.clear()
        os.environ.update(plan["env"])
        os.chdir(plan["folder"])
        sys.path[:0] = os.environ.get("PYTHONPATH", "").split(":")
        torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", torch.get_num_threads())))
        fork_processes()
        run(plan["program"])
        code = 0
    except SystemExit as e:
        if isinstance(e.code, str):
            print(e.code, file=sys.stderr)
        code = e.code if isinstance(e.code, int) else int(e.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run(words: list[str]) -> None:
    """Runs a module or a script as Python does."""
    if words[0] == "-m":
        sys.argv = words[1:]
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = words
        sys.path.insert(0, os.path.dirname(words[0]))
        runpy.run_path(words[0], run_name="__main__")


def obey(connection: socket.socket) -> None:
    """Raises the signals that the program's interpreter receives. Kills the process group when the
    interpreter has ended."""
    while number := connection.recv(1):
        os.kill(os.getpid(), number[0])
    os.killpg(0, signal.SIGKILL)
