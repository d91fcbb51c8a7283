"""Kills a process that generates text over a store, repeatedly and at random moments. No run may
give a wrong token or hang. Usage: killed.py FOLDER KILLS SEED. Prints how many prompts were
right, and how many of their tokens came from the store."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from typing import Any

import tiny
import torch
import transformers

from kvlane.transformers import KVLaneCache

GREEDY = {"max_new_tokens": 6, "do_sample": False}
RIGHT, WRONG = 0, 3
PATIENCE = 600


def prompts() -> list[Any]:
    """Returns prompts, some of which share prefixes."""
    generator = torch.Generator().manual_seed(11)
    stems = torch.randint(3, 128, (4, 64), generator=generator)
    return [
        torch.cat([stems[i % 4 : i % 4 + 1], torch.randint(3, 128, (1, 9 + 8 * i), generator=generator)], 1) for i in range(12)
    ]


def child(folder: str, order: list[int], pipe: int) -> int:
    model, texts = tiny.model("llama"), prompts()
    with KVLaneCache(model, {"cache_bytes": 2 << 20, "dirs": [folder]}, block_tokens=8) as cache:
        for i in order:
            out = cache.generate(texts[i], **GREEDY)
            os.write(pipe, f"{i} {cache.counts['tokens_loaded']} {' '.join(map(str, out[0].tolist()))}\n".encode())
    return RIGHT


def run(folder: str, order: list[int], kill_after: float | None) -> tuple[int, bytes]:
    """Runs a child, kills it after a time if one is given, and returns its exit code and its
    output."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read)
        code = 1
        try:
            code = child(folder, order, write)
        finally:
            os._exit(code)
    os.close(write)
    end = time.monotonic() + (PATIENCE if kill_after is None else kill_after)
    status = 0
    while time.monotonic() < end:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            break
        time.sleep(0.005)
    else:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
        if kill_after is None:
            sys.exit("a child hangs")
    output = b""
    while part := os.read(read, 1 << 16):
        output += part
    os.close(read)
    return os.waitstatus_to_exitcode(status), output


def main(folder: str, kills: int, seed: int) -> None:
    transformers.logging.set_verbosity_error()
    rng, model = random.Random(seed), tiny.model("llama")
    texts = prompts()
    right = [model.generate(t, **GREEDY)[0].tolist() for t in texts]
    checked = killed = 0
    last = 0
    for number in range(kills + 1):
        final = number == kills
        order = list(range(len(texts))) if final else [rng.randrange(len(texts)) for _ in range(1000)]
        code, output = run(folder, order, None if final else rng.uniform(0.05, 1.5))
        if code not in (RIGHT, -signal.SIGKILL) or (final and code):
            sys.exit(f"a child ended with {code}")
        killed += code == -signal.SIGKILL
        for line in output.decode().split("\n")[:-1]:
            i, last, *tokens = map(int, line.split())
            if tokens != right[i]:
                sys.exit(f"seed {seed}, round {number}, prompt {i}: wrong tokens {tokens} instead of {right[i]}")
            checked += 1
    if not last:
        sys.exit("nothing came from the store")
    print(f"{killed} kills, {checked} prompts right, {last} tokens from the store in the last run")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
