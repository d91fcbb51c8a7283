"""Whatever fails within a step, no request is answered from KV that is not its own: vLLM's scheduler with both connectors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest


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
    layerwise = connector == "LayerwiseConnector"
    assert (ran["layerwise"]["load"] > 0) == layerwise
    assert (ran["layerwise"]["store"] > 0) == layerwise
