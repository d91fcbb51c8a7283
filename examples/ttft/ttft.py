"""Time to first token with transformers: of a prompt computed in full, and with its prefix loaded.

    # a tiny model on the CPU
    python ttft.py
    # the shape of Llama 3.1 8B with random weights in bfloat16, on a GPU
    python ttft.py --preset 8b --json ttft.json

In the reference, transformers keeps the prefix on the device. KV and logits of every other run must
equal those of the reference, bit for bit. The other runs load the prefix by transformers'
offloading, by a plain copy from pinned memory, and by kvlane: from memory, from files in the page
cache, from files on disk, and from files after a restart of the process.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import itertools
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, DynamicCache, LlamaConfig, StaticCache

import kvlane
from kvlane.transformers import CACHE_OPTION, KVLaneCache

PRESETS: dict[str, dict[str, Any]] = {
    "tiny": {
        "vocab_size": 1024, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8,
        "num_key_value_heads": 4, "max_position_embeddings": 32768,
    },
    "8b": {
        "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
        "rope_parameters": {
            "rope_type": "llama3", "rope_theta": 500000.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
}  # fmt: skip
LENGTHS = {"tiny": "256,512,1024", "8b": "2048,4096,8192,16384,32768"}
MIB, PAGE = 1 << 20, 4096
READERS = 16  # threads of the plain reads of files, for comparison


@dataclass
class Row:
    """A line of the table. identical: all KV and logits equal the reference. Times are seconds."""

    tokens: int
    source: str
    n: int
    median: float
    p99: float
    identical: bool | None = None
    kv_bytes: int = 0  # loaded bytes; `of` names the rate for comparison
    of: str = ""

    @property
    def rate(self) -> float:
        """Return GB/s."""
        return self.kv_bytes / self.median / 1e9


def row(tokens: int, source: str, times: list[float], **more: Any) -> Row:
    """Return a row with the median and the 99th percentile of times.

    With fewer than 100 times the latter is the longest.
    """
    ordered = sorted(times)
    return Row(tokens, source, len(ordered), statistics.median(ordered), ordered[math.ceil(0.99 * len(ordered)) - 1], **more)


def machine(device: str, began: datetime, gpu: Any) -> dict[str, Any]:
    """Return where, when and how the figures were made, in the fields of kvlane's benchmarks."""
    facts: dict[str, Any] = {
        "device": device, "driver": "host" if gpu is None else "cuda", "cpus": os.cpu_count(),
        "date": began.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "seconds": round((datetime.now(timezone.utc) - began).total_seconds(), 1),
        "command": " ".join(["python", "examples/ttft/" + os.path.basename(sys.argv[0]), *sys.argv[1:]]),
    }  # fmt: skip
    if gpu is not None:
        facts["uuid"] = f"GPU-{torch.cuda.get_device_properties(gpu).uuid}"
        facts["driver_version"] = driver_version()
    return facts


def driver_version() -> str:
    """Return the versions of the driver and of its CUDA from NVML, or nothing without NVML."""
    text, number = ctypes.create_string_buffer(80), ctypes.c_int()
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return ""
    if nvml.nvmlInit_v2() or nvml.nvmlSystemGetDriverVersion(text, 80):
        return ""
    nvml.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(number))
    nvml.nvmlShutdown()
    return f"{text.value.decode()} (CUDA {number.value // 1000}.{number.value % 1000 // 10})"


class Bench:
    """A model, its prompts, and the times of work on its device."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.device = torch.device(args.device)
        self.cuda = self.device.type == "cuda"
        transformers.logging.set_verbosity_error()
        torch.manual_seed(0)
        config = LlamaConfig(**PRESETS[args.preset], bos_token_id=1, eos_token_id=None, pad_token_id=None)
        with self.device:
            self.model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16 if self.cuda else torch.float32).eval()
        head = config.hidden_size // config.num_attention_heads
        self.geometry = {
            "name": "ttft", "dtype": str(self.model.dtype).removeprefix("torch."), "layers": config.num_hidden_layers,
            "kv_heads": config.num_key_value_heads, "head_size": head, "block_tokens": args.block_tokens,
        }  # fmt: skip
        self.token_bytes = 2 * config.num_hidden_layers * config.num_key_value_heads * head * self.model.dtype.itemsize

    def prompt(self, tokens: int) -> Any:
        """Return a prompt of [1, tokens] that differs for each length."""
        generator = torch.Generator().manual_seed(tokens)
        return torch.randint(3, self.model.config.vocab_size, (1, tokens), generator=generator)

    def prefix(self, tokens: int) -> int:
        """Return the length of a prompt's prefix: whole blocks, followed by at least one token."""
        return (tokens - 1) // int(self.args.block_tokens) * int(self.args.block_tokens)

    def sync(self) -> None:
        """Wait for the device."""
        if self.cuda:
            torch.cuda.synchronize(self.device)

    def first_token(self, ids: Any, past: Any) -> Any:
        """Return the logits of the token after ids, copied to the CPU. past has a prefix of ids."""
        rest = ids[:, int(past.get_seq_length()) :].to(self.device)
        with torch.no_grad():
            logits = self.model(rest, **{CACHE_OPTION: past}, use_cache=True, logits_to_keep=1).logits[0, -1]
        int(logits.argmax())
        return logits

    def time(self, work: Callable[[], Any]) -> tuple[float, Any]:
        """Return the duration of work in seconds, including work on the device, and its result."""
        self.sync()
        begin = time.perf_counter()
        out = work()
        self.sync()
        return time.perf_counter() - begin, out

    def config(self, directory: str | None, tokens: int) -> dict[str, Any]:
        """Return the store's section, with memory for the tokens. A lease may pin 5/8 of it."""
        out: dict[str, Any] = {"cache_bytes": 2 * tokens * self.token_bytes + 64 * MIB, "admission": "always"}
        if directory:
            out["dirs"] = [directory]
            if self.args.direct:
                out["direct"] = self.args.direct
        return out

    def from_cache(self, ids: Any, get: Callable[[], Any]) -> tuple[float, Any, Any]:
        """Return the seconds to the first token after get(), the logits, and the cache of get()."""
        self.sync()
        begin = time.perf_counter()
        past = get()
        logits = self.first_token(ids, past)
        return time.perf_counter() - begin, logits, past

    def open(self, directory: str, tokens: int) -> KVLaneCache:
        """Open kvlane for the model, with memory for the tokens."""
        more = {"stream": {"policy": self.args.policy}} if self.args.policy else {}
        return KVLaneCache(
            self.model, self.config(directory, tokens),
            block_tokens=self.args.block_tokens, layerwise=self.args.layerwise, config=more,
        )  # fmt: skip


class Reference:
    """A prompt computed in full, its KV on the device, and the logits of a run from its prefix."""

    def __init__(self, bench: Bench, ids: Any) -> None:
        self.ids, self.bench, self.prefix = ids, bench, bench.prefix(ids.shape[1])
        self.past = DynamicCache()
        bench.first_token(ids, self.past)
        self.whole = [(layer.keys, layer.values) for layer in self.past.layers]
        self.parts = [(k[:, :, : self.prefix], v[:, :, : self.prefix]) for k, v in self.whole]
        self.logits = bench.first_token(ids, self.kept())

    def kept(self) -> Any:
        """Return a cache with the prefix, without a copy."""
        past = DynamicCache(self.whole)
        past.crop(self.prefix - self.ids.shape[1])
        return past

    def equal(self, past: Any, logits: Any) -> bool:
        """Return whether a run had the same KV of the prefix, and the same logits."""
        loaded = ((layer.keys[:, :, : self.prefix], layer.values[:, :, : self.prefix]) for layer in past.layers)
        return torch.equal(logits, self.logits) and all(
            torch.equal(a.to(b.device), b) for pair, want in zip(loaded, self.parts, strict=True)
            for a, b in zip(pair, want, strict=True)
        )  # fmt: skip

    def measure(self, source: str, get: Callable[[], Any], before: Callable[[], None] = lambda: None, **more: Any) -> Row:
        """Time runs from the result of get(). The first run is not counted."""
        times, same = [], True
        for i in range(self.bench.args.repeat + 1):
            before()
            seconds, logits, past = self.bench.from_cache(self.ids, get)
            self.bench.sync()  # offloading may still run
            same = same and self.equal(past, logits)
            if i:
                times.append(seconds)
        return row(self.ids.shape[1], source, times, identical=same, **more)


def by_transformers(bench: Bench, ref: Reference) -> Iterator[Row]:
    """Measure transformers' offloading and plain copies by torch."""
    tokens, times = ref.ids.shape[1], []
    for i in range(bench.args.repeat + 1):
        seconds, _ = bench.time(lambda: bench.first_token(ref.ids, DynamicCache()))
        if i:
            times.append(seconds)
    yield row(tokens, "computed in full", times)
    # The cache is created before the measurement: an engine would have kept it on the device.
    box: list[Any] = []
    yield ref.measure("kept on the device", lambda: box[-1], lambda: box.append(ref.kept()))
    box.clear()
    if bench.cuda:
        offloaded = DynamicCache(offloading=True)
        bench.first_token(ref.ids, offloaded)
        yield ref.measure("transformers, offloading", lambda: offloaded, lambda: offloaded.crop(ref.prefix - tokens))
        offloaded = None
    pinned = [tuple(x.to("cpu").contiguous() for x in pair) for pair in ref.parts]
    if bench.cuda:
        pinned = [tuple(x.pin_memory() for x in pair) for pair in pinned]
    yield ref.measure(
        "torch, pinned by hand",
        lambda: DynamicCache([tuple(x.to(bench.device, non_blocking=True, copy=True) for x in pair) for pair in pinned]),
    )


def files_of(directory: str) -> list[Path]:
    """Return all files below a directory."""
    return [p for p in Path(directory).rglob("*") if p.is_file()]


def out_of_page_cache(directory: str) -> None:
    """Write the files to disk, and drop them from the page cache."""
    for path in files_of(directory):
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def of_kvlane(bench: Bench, cache: KVLaneCache, ref: Reference, directory: str) -> Iterator[Row]:
    """Measure kvlane's hits in memory and in files. Before a run from files, memory is emptied."""
    tokens, keys = ref.ids.shape[1], cache.store.token_keys(ref.ids[0].tolist(), bench.args.block_tokens)
    # The first row is the time to store, without computing and without the writes to files.
    stored, _ = bench.time(lambda: cache.save(ref.ids, ref.past))
    yield row(tokens, "kvlane, storing", [stored], kv_bytes=len(keys) * bench.args.block_tokens * bench.token_bytes, of="copy")
    wait_for_files(cache)
    loaded = ref.prefix * bench.token_bytes

    def drop() -> None:
        drop_all_of(cache.store, keys)

    def drop_pages_too() -> None:
        drop()
        out_of_page_cache(directory)

    def load() -> Any:
        past = cache.load(ref.ids)
        if int(past.get_seq_length()) != ref.prefix:
            raise SystemExit(f"{past.get_seq_length()} tokens were loaded of {ref.prefix}: {dict(cache.counts)}")
        return past

    hits: list[tuple[str, Callable[[], None], str]]
    hits = [("in memory", lambda: None, "copy"), ("in the page cache", drop, "page cache"), ("on disk", drop_pages_too, "disk")]
    for name, before, of in hits:
        yield ref.measure(f"kvlane, {name}", load, before)
        times = []
        for _ in range(bench.args.repeat):
            before()
            times.append(bench.time(load)[0])
        yield row(tokens, f"  load(), {name}", times, kv_bytes=loaded, of=of)


def drop_all_of(store: kvlane.Store, keys: kvlane.Keys, timeout: float = 60) -> None:
    """Drop blocks from memory, so that they are only in files."""
    end = time.monotonic() + timeout
    while stay := store.drop(keys):
        if time.monotonic() > end:
            raise SystemExit(f"{stay} blocks are still in use")
        time.sleep(0.01)


def wait_for_files(cache: KVLaneCache, timeout: float = 600) -> None:
    """Wait until all saved blocks are in files."""
    end = time.monotonic() + timeout
    while cache.store.stats()["store"]["running"]:
        if time.monotonic() > end:
            raise SystemExit("blocks were not written to files in time")
        time.sleep(0.01)


def copy_rate(bench: Bench) -> float:
    """Return the best of eight rates, in bytes per second, of a copy from pinned memory."""
    size = (1024 if bench.cuda else 64) * MIB
    source = torch.zeros(size, dtype=torch.uint8, pin_memory=bench.cuda)
    target = torch.empty(size, dtype=torch.uint8, device=bench.device)
    return size / min(bench.time(lambda: target.copy_(source, non_blocking=True))[0] for _ in range(8))


def file_rate(bench: Bench, directory: str, *, direct: bool) -> float:
    """Return the bytes per second of plain reads of the files by READERS threads.

    The reads use the page cache unless direct. The memory is as long as the files, because a few
    reused buffers would stay in the caches of the CPUs. It is pinned if there is a GPU.
    """
    files = files_of(directory)
    ends = list(itertools.accumulate(-(-p.stat().st_size // PAGE) * PAGE for p in files))
    memory = torch.empty(ends[-1] + PAGE, dtype=torch.uint8, pin_memory=bench.cuda)
    start = -(-memory.data_ptr() // PAGE) * PAGE

    def read(reader: int) -> int:
        total = 0
        for i in range(reader, len(files), READERS):
            begin = ends[i - 1] if i else 0
            fd = os.open(files[i], os.O_RDONLY | (os.O_DIRECT if direct else 0))
            try:
                total += os.preadv(fd, [(ctypes.c_char * (ends[i] - begin)).from_address(start + begin)], 0)
            finally:
                os.close(fd)
        return total

    best = 0.0
    with ThreadPoolExecutor(READERS) as pool:
        for _ in range(int(bench.args.repeat) + 1):
            if direct:
                out_of_page_cache(directory)
            begin = time.perf_counter()
            total = sum(pool.map(read, range(READERS)))
            best = max(best, total / (time.perf_counter() - begin))
    return best


def loads_alone(bench: Bench, lengths: list[int], directory: str) -> Iterator[Row]:
    """Measure the store's load call alone into a paged cache: by both policies, and from files."""
    most = max(bench.prefix(n) for n in lengths)
    blocks, g = most // bench.args.block_tokens, bench.geometry
    shape = (g["layers"], 2, blocks, g["kv_heads"], g["block_tokens"], g["head_size"])
    kinds: list[tuple[str, dict[str, Any], str | None, str]] = [
        ("throughput", {"policy": "throughput"}, None, "copy"),
        ("default policy", {}, None, "copy"),
        ("page cache", {}, directory, "page cache"),
        ("disk", {}, directory, "disk"),
    ]
    pages = torch.zeros(shape, dtype=bench.model.dtype, device=bench.device).normal_()
    want = pages.clone()
    numbers = range(blocks)
    for name, stream, files, of in kinds:
        config = {
            "model": g, "revision": "ttft", "stream": stream,
            "device": {"driver": "cuda", "index": bench.device.index or 0} if bench.cuda else {"driver": "host"},
            "store": bench.config(files, most),
        }  # fmt: skip
        with kvlane.Store(config) as s, kvlane.PagedCache(s, pages, "lkp") as cache:
            keys = s.token_keys(list(range(most)), g["block_tokens"])
            pages.copy_(want)
            bench.sync()
            if not all(s.lookup(keys)):
                s.dump(cache, keys, list(numbers)).result(600)
            for tokens in lengths:
                n = bench.prefix(tokens) // g["block_tokens"]
                times = []
                for i in range(bench.args.repeat + 1):
                    if files:
                        drop_all_of(s, keys)
                    if of == "disk":
                        out_of_page_cache(directory)
                    pages.zero_()
                    bench.sync()
                    begin = time.perf_counter()
                    with s.lease(keys[:n]) as lease:
                        if lease.found != n:
                            raise SystemExit(f"{lease.found} blocks are there of {n}")
                        s.load(cache, keys[:n], list(numbers)[:n], lease).result(600)
                    if i:
                        times.append(time.perf_counter() - begin)
                same = torch.equal(pages[:, :, :n], want[:, :, :n])
                size = n * g["block_tokens"] * bench.token_bytes
                yield row(tokens, f"load call, {name}", times, identical=same, kv_bytes=size, of=of)


class Decoding:
    """Another request, decoded in its own thread and stream.

    It decodes the same token repeatedly, with a CUDA graph as engines do. Without a graph, a model
    this small would mostly wait for kernel launches and allocations.
    """

    def __init__(self, bench: Bench, tokens: int) -> None:
        self.bench, self.tokens = bench, tokens
        self.stamps: list[float] = []
        self._end, self._warm = threading.Event(), threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            stream = torch.cuda.Stream(self.bench.device) if self.bench.cuda else None
            with torch.cuda.stream(stream), torch.no_grad():
                self._decode()
        except BaseException as e:  # raised by __exit__
            self._error = e
        finally:
            self._warm.set()

    def _decode(self) -> None:
        model, device = self.bench.model, self.bench.device
        ids = self.bench.prompt(self.tokens).expand(self.bench.args.decode_batch, -1).to(device)
        past = StaticCache(model.config, max_cache_len=self.tokens + 1)
        token = model(ids, **{CACHE_OPTION: past}, logits_to_keep=1).logits[:, -1].argmax(-1, keepdim=True)
        at = torch.full_like(token, self.tokens)

        def step() -> Any:
            for layer in past.layers:
                layer.cumulative_length.fill_(self.tokens)
            return model(token, **{CACHE_OPTION: past}, position_ids=at, logits_to_keep=1).logits[:, -1].argmax(-1)

        step()
        if self.bench.cuda:
            torch.cuda.current_stream().synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=torch.cuda.current_stream(), capture_error_mode="thread_local"):
                out = step()
        while not self._end.is_set():
            if self.bench.cuda:
                graph.replay()
            else:
                out = step()
            int(out[0])
            self.stamps.append(time.perf_counter())
            if len(self.stamps) == 10:
                self._warm.set()

    def rate(self, begin: float, end: float) -> float:
        """Return the tokens per second of the whole batch between two times.

        The rate is computed from the times of the first and last token between them. Dividing by
        end - begin would add an error of up to one token in about eighty.
        """
        stamps = [s for s in self.stamps if begin <= s < end]
        steps, seconds = (len(stamps) - 1, stamps[-1] - stamps[0]) if len(stamps) > 1 else (len(stamps), end - begin)
        return int(self.bench.args.decode_batch) * steps / seconds

    def __enter__(self) -> Decoding:
        self._thread.start()
        self._warm.wait()
        return self

    def __exit__(self, *_: Any) -> None:
        self._end.set()
        self._thread.join()
        if self._error:
            raise self._error


def decode_while_loading(bench: Bench, cache: KVLaneCache, ids: Any) -> dict[str, Any]:
    """Measure the decoding rate of another request: alone, during loads, and during plain copies.

    The loads are of this prompt's prefix. The three measurements alternate, so that other work of
    the machine affects all of them.
    """
    seconds, rounds = bench.args.decode_seconds, 4
    size = bench.prefix(ids.shape[1]) * bench.token_bytes
    source = torch.zeros(256 * MIB, dtype=torch.uint8, pin_memory=bench.cuda)
    target = torch.empty_like(source, device=bench.device)

    def load() -> int:
        cache.load(ids)
        return int(size)

    def copy() -> int:
        for _ in range(4):
            target.copy_(source, non_blocking=True)
        return 4 * int(source.numel())

    def alone() -> int:
        time.sleep(seconds / rounds)
        return 0

    kinds = {"alone": alone, "load": load, "copy": copy}
    rates: dict[str, list[float]] = {k: [] for k in kinds}
    moved: dict[str, list[float]] = {k: [] for k in kinds}
    with Decoding(bench, min(ids.shape[1], 2048)) as other:
        stream = torch.cuda.Stream(bench.device) if bench.cuda else None
        with torch.cuda.stream(stream):
            for _ in range(rounds):
                for kind, work in kinds.items():
                    begin, total = time.perf_counter(), 0
                    while time.perf_counter() - begin < seconds / rounds:
                        total += work()
                        if stream is not None:
                            stream.synchronize()
                    end = time.perf_counter()
                    rates[kind].append(other.rate(begin, end))
                    moved[kind].append(total / (end - begin) / 1e9)
    tokens = {k: statistics.median(v) for k, v in rates.items()}

    def lost(kind: str) -> float:
        return 100 * (1 - tokens[kind] / tokens["alone"]) if tokens["alone"] else 0

    return {
        "tokens": ids.shape[1], "batch": bench.args.decode_batch, "tokens_per_s_alone": tokens["alone"],
        "tokens_per_s_beside": tokens["load"], "loss_percent": lost("load"), "load_gb_per_s": statistics.median(moved["load"]),
        "tokens_per_s_beside_copies": tokens["copy"], "copies_loss_percent": lost("copy"),
        "copies_gb_per_s": statistics.median(moved["copy"]),
    }  # fmt: skip


def after_restart(args: argparse.Namespace, directory: str, lengths: list[int], scratch: str) -> list[Row]:
    """Run the same prompts in a new process, over the same files."""
    out = os.path.join(scratch, "child.json")
    command = [sys.executable, os.path.abspath(__file__), "--child", out, "--dir", directory, "--scratch", scratch]
    command += ["--preset", args.preset, "--device", args.device, "--tokens", ",".join(map(str, lengths))]
    command += ["--block-tokens", str(args.block_tokens), *(["--policy", args.policy] if args.policy else [])]
    command += ["--layerwise"] if args.layerwise else []
    command += ["--direct", args.direct] if args.direct else []
    subprocess.run(command, check=True)
    return [Row(**r) for r in json.loads(Path(out).read_text())]


def child(args: argparse.Namespace, lengths: list[int]) -> None:
    """Run the prompts in the new process."""
    bench, rows = Bench(args), []
    # The first use loads the device's libraries.
    bench.first_token(bench.prompt(max(lengths) - 1), DynamicCache())
    with bench.open(args.dir, sum(lengths)) as cache:
        for tokens in lengths:
            want = torch.load(os.path.join(args.scratch, f"{tokens}.pt"), map_location=bench.device)
            ids = bench.prompt(tokens)
            seconds, logits, _ = bench.from_cache(ids, functools.partial(cache.load, ids))
            found = cache.counts["tokens_loaded"] == sum(bench.prefix(n) for n in lengths[: lengths.index(tokens) + 1])
            rows.append(row(tokens, "kvlane, after a restart", [seconds], identical=found and torch.equal(logits, want)))
    Path(args.child).write_text(json.dumps([asdict(r) for r in rows]))


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--preset", choices=PRESETS, default="tiny", help="the model's shape")
    parser.add_argument("--tokens", help="lengths of prompts, separated by commas; by default the preset's")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each kind, after one that does not count")
    parser.add_argument("--device", help="of torch; by default cuda for 8b, else cpu")
    parser.add_argument("--block-tokens", type=int, default=16)
    parser.add_argument("--policy", choices=("throughput", "latency", "balanced", "background"), help="of kvlane's copies")
    parser.add_argument("--layerwise", action="store_true", help="have the model's layers wait for their own KV of kvlane")
    parser.add_argument("--dir", help="where to make a directory for the files, on the disk that is meant; else in TMPDIR")
    parser.add_argument(
        "--direct", choices=("off", "auto", "always", "require"), help="of kvlane's files: by cuFile, without pinned memory"
    )
    parser.add_argument("--decode-beside", action="store_true", help="also load while another request decodes")
    parser.add_argument("--decode-batch", type=int, default=1, help="sequences of that request")
    parser.add_argument("--decode-seconds", type=float, default=8, help="how long it decodes, with loads and without")
    parser.add_argument("--json", help="file for all figures")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--scratch", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.device = args.device or ("cuda" if args.preset == "8b" else "cpu")
    args.tokens = args.tokens or LENGTHS[args.preset]
    return args


def show(r: Row, rates: dict[str, float]) -> None:
    """Print a line of the table."""
    line = f"{r.tokens:>7}  {r.source:<38} {1e3 * r.median:>10.2f} {1e3 * r.p99:>10.2f}"
    line += f" {r.rate:>8.2f}" if r.of else " " * 9
    line += f" {100 * r.rate * 1e9 / rates[r.of]:>4.0f}% of {r.of:<10}" if r.of in rates else " " * 20
    print(line + {True: "  identical", False: "  NOT IDENTICAL", None: ""}[r.identical], flush=True)


def main() -> int:
    """Print the table. The exit status is 1 if a run was not identical."""
    args = arguments()
    lengths = [int(n) for n in args.tokens.split(",")]
    if args.child:
        child(args, lengths)
        return 0
    directory, scratch = tempfile.mkdtemp(prefix="kvlane-ttft-", dir=args.dir), tempfile.mkdtemp(prefix="kvlane-ttft-")
    try:
        return measure(args, lengths, directory, scratch)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        shutil.rmtree(scratch, ignore_errors=True)


def measure(args: argparse.Namespace, lengths: list[int], directory: str, scratch: str) -> int:
    """Measure everything. Blocks go to files in directory, and data for the child to scratch."""
    began = datetime.now(timezone.utc)
    bench, rows = Bench(args), list[Row]()
    rates = {"copy": copy_rate(bench)}
    place = torch.cuda.get_device_name(bench.device) if bench.cuda else "CPU"
    print(f"{place}, torch {torch.__version__}, transformers {transformers.__version__}, kvlane {kvlane.__version__}")
    print(f"preset {args.preset}, {bench.token_bytes} bytes of KV a token; one plain copy: {rates['copy'] / 1e9:.2f} GB/s")
    print(f"{'tokens':>7}  {'prefix':<38} {'median ms':>10} {'p99 ms':>10} {'GB/s':>8}")

    def add(r: Row) -> None:
        rows.append(r)
        show(r, rates)

    blocks, alone, decoding = os.path.join(directory, "blocks"), os.path.join(directory, "alone"), None
    with bench.open(blocks, sum(lengths)) as cache:
        for tokens in lengths:
            ref = Reference(bench, bench.prompt(tokens))
            torch.save(ref.logits.cpu(), os.path.join(scratch, f"{tokens}.pt"))
            for r in by_transformers(bench, ref):
                add(r)
            for r in of_kvlane(bench, cache, ref, blocks):
                add(r)
            del ref
        if args.decode_beside:
            decoding = decode_while_loading(bench, cache, bench.prompt(max(lengths)))
        stats, notes = cache.store.stats(), cache.store.notes()
    for r in loads_alone(bench, lengths, alone):
        add(r)
    rates["page cache"] = file_rate(bench, alone, direct=False)
    rates["disk"] = file_rate(bench, alone, direct=True)
    del bench.model, cache  # free the memory for the child's own model
    if bench.cuda:
        torch.cuda.empty_cache()
    for r in after_restart(args, blocks, lengths, scratch):
        add(r)
    print(f"plain reads of the files by {READERS} threads: {rates['page cache'] / 1e9:.2f} GB/s in the page cache,"
          f" {rates['disk'] / 1e9:.2f} GB/s on disk")  # fmt: skip
    for r in rows:
        if r.of in ("page cache", "disk"):
            print(f"{r.tokens:>7}  {r.source:<38} {100 * r.rate * 1e9 / rates[r.of]:.0f}% of it")
    if decoding:
        print(f"another request ({decoding['batch']} sequences) decodes at {decoding['tokens_per_s_alone']:.1f} tokens/s,"
              f" at {decoding['tokens_per_s_beside']:.1f} ({decoding['loss_percent']:.1f}% less)"
              f" while prefixes of {decoding['tokens']} tokens are loaded at {decoding['load_gb_per_s']:.2f} GB/s,"
              f" and at {decoding['tokens_per_s_beside_copies']:.1f} ({decoding['copies_loss_percent']:.1f}% less)"
              f" beside plain copies at {decoding['copies_gb_per_s']:.2f}")  # fmt: skip
    wrong = [r for r in rows if r.identical is False]
    print("KV and logits of all runs are the reference's, bit by bit" if not wrong else f"{len(wrong)} rows are NOT IDENTICAL")
    if args.json:
        Path(args.json).write_text(json.dumps({
            "device": place, "machine": machine(place, began, bench.device if bench.cuda else None),
            "kvlane": kvlane.__version__, "torch": str(torch.__version__), "transformers": transformers.__version__,
            "preset": args.preset, "token_bytes": bench.token_bytes, "block_tokens": args.block_tokens,
            "rates": rates, "rows": [{**asdict(r), "gb_per_s": r.rate if r.of else None} for r in rows],
            "decode_beside": decoding, "stats": stats, "notes": notes,
        }, indent=1))  # fmt: skip
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
