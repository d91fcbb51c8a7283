"""The wheel's tag: it has a library and a binary for Linux on x86-64, and works with every Python 3."""

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Tag(BuildHookInterface[Any]):  # type: ignore[misc]
    """Sets the wheel's tag. Fails if the files that `make wheel` adds are missing."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Called before a wheel is built."""
        if version != "standard":  # editable: KVLANE_LIBRARY names the library
            return
        for name in ("libkvlane.so", "kvlane"):
            if not Path(self.root, "src", "kvlane", "lib", name).exists():
                raise FileNotFoundError(f"src/kvlane/lib/{name} is not there: build the wheel by `make wheel`")
        build_data["pure_python"] = False
        build_data["tag"] = "py3-none-manylinux_2_17_x86_64"
