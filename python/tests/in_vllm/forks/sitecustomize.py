"""Has programs that import vLLM run in a child of run.py, which has imported it: see programs.py.
The interpreter imports this module at its start if its folder is on PYTHONPATH. The child has the
command line, the environment, the working directory and the output of this process, which passes
signals on and exits with the child's exit code. The child ends with this process."""

import json
import os
import signal
import socket
import sys
from types import FrameType

PROGRAMS = ("vllm", "ttft_vllm.py")
words = sys.orig_argv[1:]


def send(number: int, _: FrameType | None) -> None:
    server.send(bytes([number]))


if words[:2] == ["-m", "vllm.entrypoints.cli.main"] or (words and os.path.basename(words[0]) in PROGRAMS):
    server = socket.socket(socket.AF_UNIX)
    server.connect(os.environ["KVLANE_FORKS"])
    plan = json.dumps({"program": words, "env": dict(os.environ), "folder": os.getcwd()}).encode()
    socket.send_fds(server, [len(plan).to_bytes(4, "little")], [1, 2])
    server.sendall(plan)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, send)
    code = server.recv(4, socket.MSG_WAITALL)
    os._exit(int.from_bytes(code, "little") if code else 1)
