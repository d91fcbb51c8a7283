"""Tests configurations in the forms in which programs write them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

import kvlane
from kvlane import _config, identity


@pytest.mark.parametrize(("given", "want"), [
    (None, []), ([], []), ("/ab", ["/ab"]), (Path("/ab"), ["/ab"]), (["/a", Path("/b")], ["/a", "/b"]), (("/a",), ["/a"]),
])  # fmt: skip
def test_one_directory_needs_no_list(given: Any, want: list[str]) -> None:
    assert _config.directories({"dirs": given}) == want


@pytest.mark.parametrize("given", [3, {"/a": 1}, ["/a", 3], [["/a"]], b"/a", "", ["/a", ""]])
def test_what_is_no_directory_is_refused(given: Any) -> None:
    with pytest.raises(kvlane.Invalid, match="dirs"):
        _config.directories({"dirs": given})


def test_an_identity_has_a_folder_in_each_directory() -> None:
    store = {"cache_bytes": 1, "dirs": ["/a", Path("/b")]}
    assert _config.with_folder(store, "n") == {"cache_bytes": 1, "dirs": ["/a/n", "/b/n"], "shared_bound": True}
    assert _config.with_folder({"dirs": "/ab", "shared_bound": False}, "n") == {"dirs": ["/ab/n"], "shared_bound": False}
    assert _config.with_folder({"cache_bytes": 1}, "n") == {"cache_bytes": 1}


def test_a_file_supplies_what_a_program_does_not_give(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "device: host\ncache-bytes: 4MiB\nfile-dir: [/a, /b]\nfsync: file\nmetrics-addr: 127.0.0.1:1\nlog-level: debug\n"
    )
    given = {"config": file, "store": {"cache_bytes": 1 << 20}, "weights": "w"}
    want = {
        "store": {"cache_bytes": 1 << 20, "dirs": ["/a", "/b"], "fsync": "file"},
        "device": {"driver": "host"},
        "weights": "w",
    }
    assert _config.merged(given) == want
    # If the pipeline has no file tier, the directories and fsync of the configuration file are left
    # out.
    given["store"] = {"log_dir": "/l", "cache_bytes": 1, "pipeline": "cache|log"}
    assert _config.merged(given)["store"] == given["store"]
    assert _config.merged({"store": {}}) == {"store": {}}
    with pytest.raises(kvlane.Invalid, match="none"):
        _config.merged({"config": tmp_path / "none"})


@pytest.mark.parametrize("given", [None, 5, b"t", ["t"]])
def test_a_tenant_is_a_text(given: Any) -> None:
    """If other types were converted, None and "None", or 5 and "5", would be one tenant."""
    assert _config.tenant("t") == "t"
    with pytest.raises(kvlane.Invalid, match="tenant"):
        _config.tenant(given)


def test_paths_are_texts_in_json() -> None:
    assert json.loads(_config.encode({"store": {"log_dir": Path("/a")}})) == {"store": {"log_dir": "/a"}}
    for bad in (object(), {1, 2}, float("nan"), float("inf"), b"x"):
        with pytest.raises(kvlane.Invalid, match="configuration"):
            _config.encode({"store": bad})


def test_a_file_name_that_is_no_text_has_a_fingerprint(tmp_path: Path) -> None:
    found: set[str | None] = set()
    for name in (b"caf\xe9.bin", b"caf\xe8.bin"):
        folder = tmp_path / str(len(found))
        folder.mkdir()
        file = os.path.join(os.fsencode(folder), name)
        with open(file, "wb") as f:
            f.write(b"weights")
        os.utime(file, (1, 1))
        found.add(identity.folder_fingerprint(folder))
    assert len(found) == 2
    assert None not in found
