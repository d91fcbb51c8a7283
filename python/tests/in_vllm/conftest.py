"""Shared fixtures for the tests of kvlane.vllm: tiny models, and vLLM in separate processes."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
LIMIT = 420  # time limit of a process in seconds; one takes 30 to 60 on two cores
REQUIRE = os.environ.get("KVLANE_REQUIRE", "").split(",")
REQUIRED = "vllm" in REQUIRE

if importlib.util.find_spec("vllm") is None and not REQUIRED:
    collect_ignore_glob = ["test_*"]


def command(name: str) -> str:
    """Returns the path of a command. Without the command the test is skipped, or fails if
    KVLANE_REQUIRE names it."""
    path = shutil.which(name)
    if path is None:
        if name in REQUIRE:
            pytest.fail(f"KVLANE_REQUIRE has {name}, and there is no such command")
        pytest.skip(f"there is no command {name}")
    return path


@dataclass
class Ran:
    """The exit code and the output of a run of run.py."""

    code: int
    text: str
    steps: list[dict[str, Any]] = field(default_factory=list)

    def stats(self, key: str) -> dict[str, Any]:
        """Returns the last statistics in the log that have the key."""
        found: list[dict[str, Any]] = [json.loads(m) for m in re.findall(r"kvlane: (\{.*\})$", self.text, re.MULTILINE)]
        found = [f for f in found if key in f]
        assert found, f"no figures with {key!r} in:\n{self.text[-4000:]}"
        return found[-1]


class Server:
    """A process that has imported vLLM and forks a child for each run. env are the variables with
    which programs that import vLLM are forked from it too."""

    def __init__(self, folder: Path) -> None:
        path = f"{HERE / 'forks'}:{os.environ.get('PYTHONPATH', '')}"
        self.env = {"KVLANE_FORKS": str(folder / "socket"), "PYTHONPATH": path}
        env = {
            **os.environ,
            "VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "TOKENIZERS_PARALLELISM": "false",
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "KVLANE_FORKS": self.env["KVLANE_FORKS"],
            "TORCHDYNAMO_DISABLE": "1",  # compiling what counts log probabilities takes seconds
        }  # fmt: skip
        env.pop("PYTHONHASHSEED", None)  # keys must stay equal across restarts without a fixed hash seed
        command = [sys.executable, "-m", "in_vllm.run"]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, env=env, cwd=HERE.parent, **pipes)
        self._ended = False
        self._codes: dict[int, int | None] = {}
        self._changed = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()
        assert self._await(lambda: 0 in self._codes, LIMIT), "vLLM cannot be imported"

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith("["):
                pid, code = json.loads(line)
                with self._changed:
                    self._codes[pid] = code
                    self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _await(self, what: Callable[[], bool], limit: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: what() or self._ended, limit) and what()

    def start(self, plan: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        known = set(self._codes)
        self._process.stdin.write(json.dumps(plan) + "\n")
        self._process.stdin.flush()
        assert self._await(lambda: bool(set(self._codes) - known), LIMIT), "the server does not answer"
        return (set(self._codes) - known).pop()

    def wait(self, pid: int, limit: float) -> int | None:
        """Returns the exit code of a process, or None if it is still running after the limit."""
        self._await(lambda: self._codes[pid] is not None, limit)
        return self._codes[pid]

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class Engine:
    """A process that runs vLLM, with child processes if multiprocessing is on."""

    def __init__(self, server: Server, plan: dict[str, Any]) -> None:
        self._server, self._log = server, Path(plan["log"])
        self.pid = server.start(plan)

    def text(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def has_printed(self, line: str) -> None:
        """Waits until the log has a line that starts so."""
        deadline = time.monotonic() + LIMIT
        while f"\n{line}" not in self.text():
            assert self._server.wait(self.pid, 0.1) is None, self.text()[-6000:]
            assert time.monotonic() < deadline, f"vLLM does not say {line}:\n{self.text()[-6000:]}"

    def processes(self) -> list[int]:
        """Returns the running processes of this process's group, which it leads."""
        out = []
        for stat in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):  # the process has ended
                state, _, group = stat.read_text().rpartition(")")[2].split()[:3]
                if int(group) == self.pid and state not in "ZX":
                    out.append(int(stat.parent.name))
        return out

    def kill_core(self) -> None:
        """Kills vLLM's scheduler and workers with SIGKILL, but not the front end, which vLLM 0.32
        leaves waiting."""
        others = [p for p in self.processes() if p != self.pid]
        assert any("libkvlane" in Path(f"/proc/{p}/maps").read_text() for p in others)
        for p in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(p, signal.SIGKILL)
        self.has_gone(lambda: set(others) & set(self.processes()))

    @staticmethod
    def has_gone(left: Callable[[], Any]) -> None:
        """Waits until no killed process is left."""
        deadline = time.monotonic() + LIMIT
        while pids := left():
            assert time.monotonic() < deadline, f"killed, and still there: {pids}"
            time.sleep(0.05)

    def kill(self) -> bool:
        """Kills the whole process group with SIGKILL. Returns whether it was still running."""
        ran = self._server.wait(self.pid, 0) is None
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._server.wait(self.pid, LIMIT)
        self.has_gone(self.processes)
        return ran

    def ended(self, limit: float = LIMIT) -> Ran:
        code = self._server.wait(self.pid, limit)
        self.kill()
        text = self.text()
        assert code is not None, f"vLLM hangs:\n{text[-6000:]}"
        assert code == 0, text[-6000:]
        return Ran(code, text, [json.loads(line[5:]) for line in text.splitlines() if line.startswith("STEP ")])


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Any:
    s = Server(tmp_path_factory.mktemp("server"))
    yield s
    s.close()


@pytest.fixture(scope="session")
def model(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Returns a function that makes a model once and returns its directory."""
    made: dict[str, str] = {}

    def make(name: str) -> str:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            Engine(server, {"make": name, "model": str(folder / "model"), "log": str(folder / "log"), "env": {}}).ended()
            made[name] = str(folder / "model")
        return made[name]

    return make


@pytest.fixture
def start(server: Server, model: Any, tmp_path: Path) -> Any:
    """Returns start(steps, name=..., kvlane=..., processes=..., layerwise=..., **arguments of
    LLM), which starts vLLM and returns an Engine."""
    begun: list[Engine] = []

    def go(
        steps: list[dict[str, Any]],
        *,
        name: str = "llama",
        kvlane: dict[str, Any] | None = None,
        processes: bool = False,
        layerwise: bool = False,
        metrics: bool = False,
        kv_events: dict[str, Any] | None = None,
        **engine: Any,
    ) -> Engine:
        if layerwise:
            engine["async_scheduling"] = False
        if metrics:
            engine["disable_log_stats"] = False
        plan = {
            "connector": "LayerwiseConnector" if layerwise else "Connector",
            "metrics": metrics,
            "kv_events": kv_events,
            "model": model(name),
            "engine": {"dtype": "float32", "max_model_len": 512, "max_num_seqs": 8, "block_size": 32, "seed": 0} | engine,
            "kvlane": None if kvlane is None else kvlane | {"log_seconds": 0},
            "steps": steps,
            "log": str(tmp_path / f"vllm{len(begun)}.log"),
            # Do not bind workers to cores, so that any number of workers runs on any number of
            # cores.
            "env": {"VLLM_ENABLE_V1_MULTIPROCESSING": str(int(processes)), "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
        }
        begun.append(Engine(server, plan))
        return begun[-1]

    yield go
    for engine in begun:
        engine.kill()


@pytest.fixture
def identities(server: Server, model: Any, tmp_path: Path) -> Any:
    """Returns a function that reports, for each case, the configurations of the engine's stores,
    one a rank, or an error's text."""

    def ask(cases: list[Any]) -> list[Any]:
        log = str(tmp_path / f"identities{len(list(tmp_path.iterdir()))}.log")
        ran = Engine(server, {"identities": cases, "model": model("llama"), "log": log, "env": {}}).ended()
        return [step["stores"] for step in ran.steps]

    return ask


@pytest.fixture
def steps(server: Server, model: Any, tmp_path: Path) -> Any:
    """Returns steps(connector=..., folder=..., seed=..., requests=..., damage=..., abort=...),
    which runs steps.py and returns its report."""

    def go(**plan: Any) -> Any:
        (step,) = Engine(server, plan | {"model": model("llama"), "log": str(tmp_path / "steps.log"), "env": {}}).ended().steps
        return step

    return go
