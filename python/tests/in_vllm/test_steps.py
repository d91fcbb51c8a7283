"""Whatever fails within a step, no request is answered from KV that is not its own: vLLM's scheduler with both connectors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("connector", ["Connector", "LayerwiseConnector"])
def test_requests_over_damaged_files(steps: Any, tmp_path: Path, connector: str) -> None:
    ran = steps(connector=connector, folder=str(tmp_path / "kv"), seed=1, requests=150, damage=0.2, abort=0.05)
    assert ran["requests"] == 150
    assert ran["wrong"] == 0, ran
    assert ran["ends"] == ["ABORT", "LENGTH"]
    assert ran["recovered"] > 0, "no load has failed"
    assert ran["stats"]["jobs"] == 0, "slots are left"
    layerwise = connector == "LayerwiseConnector"
    assert (ran["layerwise"]["load"] > 0) == layerwise
    assert (ran["layerwise"]["store"] > 0) == layerwise
