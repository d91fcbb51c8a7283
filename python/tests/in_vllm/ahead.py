"""Simulates a device for vLLM with asynchronous scheduling: operations are queued in order, and
run later."""

from __future__ import annotations

import pickle
import time
from collections import deque
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import RequestStatus

from kvlane.task import Load

from .steps import BLOCK, PAGES, WRONG, Rig, prefix_values


class Work:
    """The device's main stream. Queued operations run in order when the host waits for them."""

    def __init__(self) -> None:
        self.queue: deque[Callable[[], None]] = deque()
        self.enqueued = self.done = 0

    def put(self, op: Callable[[], None]) -> int:
        """Queues an operation. Returns the stream position at which it is complete."""
        self.queue.append(op)
        self.enqueued += 1
        return self.enqueued

    def run(self, position: int) -> None:
        while self.done < position:
            self.queue.popleft()()
            self.done += 1

    @property
    def position(self) -> int:
        return self.enqueued


class Side:
    """A second stream without operations: its position is that of the work it waits for."""

    def __init__(self) -> None:
        self.position = 0

    def wait_stream(self, other: Any) -> None:
        self.position = max(self.position, other.position)


class Later(Load):
    """A load that starts once the main stream has reached a position."""

    def __init__(self, work: Work, position: int, start: Callable[[], Load]) -> None:
        self._handle, self._work, self._position, self._start = 0, work, position, start
        self._real: Load | None = None

    def _started(self) -> Load | None:
        if self._real is None and self._work.done >= self._position:
            self._real = self._start()
        return self._real

    def done(self) -> bool:
        real = self._started()
        return real is not None and real.done()

    def succeeded(self) -> bool:
        real = self._started()
        return real is not None and real.succeeded()

    def wait(self, timeout: float | None = None) -> bool:
        self._work.run(self._position)
        real = self._started()
        assert real is not None
        return real.wait(timeout)

    def seconds(self) -> float:
        assert self._real is not None
        return self._real.seconds()

    def results(self) -> Any:
        assert self._real is not None
        return self._real.results()


class DeviceStore:
    """A store on the host whose tasks wait for the simulated device."""

    driver = "cuda"

    def __init__(self, store: Any, work: Work) -> None:
        self._store, self._work = store, work
        self.forward: int | None = None  # the stream position of the step's forward, once it is launched
        self.loads = self.behind = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def load(self, cache: Any, keys: Any, pages: Any, *, after: Any, **_: Any) -> Load:
        self.loads += 1
        self.behind += self.forward is not None and after.position >= self.forward
        return Later(self._work, after.position, lambda: self._store.load(cache, keys, pages))

    def dump(self, cache: Any, keys: Any, pages: Any, after: Any, **more: Any) -> Any:
        self._work.run(after.position)
        return self._store.dump(cache, keys, pages, None, **more)


class AheadRig(Rig):
    """A Rig whose scheduler runs one step ahead of the device."""

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more, ahead=True)
        self.work = Work()
        mock.patch.object(torch.cuda, "current_stream", return_value=self.work).start()
        mock.patch.object(torch.cuda, "Stream", Side).start()
        worker = self.connector.connector_worker.worker
        self.store = worker.store = DeviceStore(worker.store, self.work)
        self.new: list[int] = []  # pages that this step allocated, which vLLM may zero
        pool = self.scheduler.kv_cache_manager.block_pool
        allocate = pool.get_new_blocks

        def recorded(n: int) -> Any:
            blocks = allocate(n)
            self.new += [b.block_id for b in blocks]
            return blocks

        pool.get_new_blocks = recorded
        self.known: dict[str, list[int]] = {}  # for each request, the tokens that the device has
        self.steps: deque[tuple[Any, int, dict[str, list[int]], KVConnectorOutput]] = deque()
        self.late = 0  # number of requests whose loads ended after the results of their step were taken
        take = self.connector._take_loaded

        def counted() -> Any:
            requests, meta = take()
            self.late += len(requests)
            return requests, meta

        self.connector._take_loaded = counted

    def step(self, abort: float) -> None:
        self.launch()
        if len(self.steps) > 1:
            self.finish(abort)

    def launch(self) -> None:
        """Schedules a step and launches its work."""
        self.new.clear()
        plan = self.scheduler.schedule()
        zeroed, c = list(self.new), self.connector
        c.handle_preemptions(plan.kv_connector_metadata)
        self.work.put(lambda: self.zero(zeroed))
        self.store.forward = None
        c.bind_connector_metadata(plan.kv_connector_metadata)
        tokens: dict[str, list[int]] = {}
        position = self.work.enqueued
        if plan.num_scheduled_tokens:
            work = self.inputs(plan)
            position = self.store.forward = self.work.put(lambda: tokens.update(self.computed(work)))
        c.start_load_kv(None)
        c.wait_for_save()
        ended = c.get_transfer_results(plan.finished_req_ids)
        out = KVConnectorOutput(
            finished_sending=ended.finished_sending or None, finished_recving=ended.finished_recving or None,
            failed_recving=ended.failed_recving, invalid_block_ids=c.get_block_ids_with_load_errors(),
            kv_connector_worker_meta=c.build_connector_worker_meta(),
        )  # fmt: skip
        c.clear_connector_metadata()
        self.steps.append((plan, position, tokens, out))

    def finish(self, abort: float) -> None:
        """Waits for the oldest step and gives its results to the scheduler, at random directly or
        pickled as from another process."""
        plan, position, tokens, out = self.steps.popleft()
        self.work.run(position)
        if self.rng.random() < 0.5:
            time.sleep(0.002)
        if self.rng.random() < 0.5:
            out = pickle.loads(pickle.dumps(out))
        self.recovered += bool(out.invalid_block_ids)
        ids = list(plan.num_scheduled_tokens)
        running = [r for r in ids if r in self.scheduler.requests]
        if running and self.rng.random() < abort:
            self.scheduler.finish_requests(self.rng.choice(running), RequestStatus.FINISHED_ABORTED)
        self.scheduler.update_from_output(
            plan,
            ModelRunnerOutput(
                req_ids=ids, req_id_to_index={r: i for i, r in enumerate(ids)}, sampled_token_ids=[tokens[r] for r in ids],
                kv_connector_output=out,
            ),
        )  # fmt: skip
        if not ids:
            time.sleep(0.001)

    def zero(self, pages: list[int]) -> None:
        for memory in self.layers.values():
            memory[pages] = 0

    def inputs(self, plan: Any) -> list[tuple[str, list[int], int, int, int, Any]]:
        """Returns the step's inputs for each request. The device appends to the lists of tokens."""
        begun = {r.req_id for r in plan.scheduled_new_reqs} | set(plan.scheduled_cached_reqs.resumed_req_ids)
        out = []
        for request_id, n in plan.num_scheduled_tokens.items():
            r = self.scheduler.requests[request_id]
            if request_id in begun:
                self.known[request_id] = list(r.all_token_ids)
            (pages,) = self.scheduler.kv_cache_manager.get_block_ids(request_id)
            end = r.num_computed_tokens
            slots = torch.tensor([pages[i // BLOCK] * BLOCK + i % BLOCK for i in range(end)])
            out.append((request_id, self.known[request_id], end - n, end, r.num_tokens + r.num_output_placeholders, slots))
        return out

    def computed(self, work: list[tuple[str, list[int], int, int, int, Any]]) -> dict[str, list[int]]:
        """The device's forward: checks the KV of earlier tokens, writes the KV of new ones, and
        samples."""
        out = {}
        for request_id, known, start, end, _, slots in work:
            values = prefix_values(known[:end])
            wrong = False
            for memory in self.layers.values():
                for slot, value in zip(slots[start:end].tolist(), values[start:end].tolist(), strict=True):
                    memory[slot // BLOCK, :, slot % BLOCK] = value
                flat = memory.transpose(1, 2).reshape(PAGES * BLOCK, -1)
                wrong |= not torch.equal(flat[slots], values[:, None].expand(-1, flat.shape[1]))
            out[request_id] = list[int]()
            if end >= len(known):
                known.append(WRONG if wrong else 10 + int(values[-1]) % 400)
                out[request_id] = [known[-1]]
        return out
