"""Runs vLLM's scheduler with both connectors: whatever load fails within a step, no request
continues from wrong KV."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest


def has_measured(stats: dict[str, Any]) -> None:
    """The Manager has measured the times of loads, as seen by workers and by the scheduler, and of
    steps. Most loads have blocks in files, and other requests are computed while they run."""
    measured = stats["admission"]
    assert measured["file_rate"] > 0
    assert 0 <= measured["file_delay"] < 10
    assert measured["step"] > 0


@pytest.mark.parametrize("connector", ["Connector", "LayerwiseConnector"])
def test_requests_over_damaged_files(steps: Any, tmp_path: Path, connector: str) -> None:
    seed = int(os.environ.get("KVLANE_SEED", "1"))
    ran = steps(connector=connector, folder=str(tmp_path / "kv"), seed=seed, requests=300, damage=0.9, abort=0.05)
    assert ran["requests"] == 300
    assert ran["wrong"] == 0, ran
    assert ran["ends"] == ["ABORT", "LENGTH"]
    assert ran["recovered"] > 0, "no load has failed"
    stats = ran["stats"]
    assert stats["jobs"] == 0, "slots are left"
    assert stats["stored"] + stats["from_files"] == stats["blocks"] + stats["evicted"] + stats["forgotten"]
    has_measured(stats)
    layerwise = connector == "LayerwiseConnector"
    assert (ran["layerwise"]["load"] > 0) == layerwise
    assert (ran["layerwise"]["store"] > 0) == layerwise


def test_small_hits_are_loaded_within_a_step(steps: Any, tmp_path: Path) -> None:
    """With vLLM's sync_load_budget_bytes, hits above the budget (six blocks here) are loaded
    before the request's first step."""
    import vllm

    if vllm.__version__.startswith("0.32"):
        pytest.skip("vLLM 0.32 has no such option")
    seed = int(os.environ.get("KVLANE_SEED", "1"))
    ran = steps(connector="Connector", folder=str(tmp_path / "kv"), seed=seed, requests=300, damage=0.9, abort=0.05, budget=18432)
    assert ran["requests"] == 300
    assert ran["wrong"] == 0, ran
    assert ran["ends"] == ["ABORT", "LENGTH"]
    assert ran["recovered"] > 0, "no load has failed"
    assert ran["in_step"] > 0, "no load was within a step"
    assert ran["whole"]["load"] > ran["in_step"], "no load was too large"
    assert ran["stats"]["jobs"] == 0, "slots are left"
    has_measured(ran["stats"])


def test_loads_are_ordered_behind_the_step_before(steps: Any, tmp_path: Path) -> None:
    """The scheduler is one step ahead of the device. The device zeroes new pages, and a request's
    last token may arrive late. A load waits for these earlier operations, but not for the
    forward of its own step, and is reported with a later step."""
    seed = int(os.environ.get("KVLANE_SEED", "1"))
    ran = steps(connector="Connector", folder=str(tmp_path / "kv"), seed=seed, requests=200, damage=0.3, abort=0.05, ahead=True)
    assert ran["requests"] == 200
    assert ran["wrong"] == 0, ran
    assert ran["ends"] == ["ABORT", "LENGTH"]
    assert ran["stats"]["jobs"] == 0, "slots are left"
    has_measured(ran["stats"])
    assert ran["ahead"]["loads"] > 20
    assert ran["ahead"]["behind"] == 0, "loads wait for their own step"
    assert ran["ahead"]["late"] > 0, "no load has ended with the step that ran"
