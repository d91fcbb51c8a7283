"""Adapters by engine release.

Each supported interface has a module, named after its first release.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import errors


@dataclass(frozen=True)
class Adapters:
    """The adapter modules of a package.

    The key is the beginning of a version, up to a dot or a plus sign.
    """

    package: str
    engine: str
    modules: Mapping[str, str]

    def module(self, version: str) -> str:
        """Return the module for a version of the engine. Raises NotSupported if there is none."""
        for release, name in self.modules.items():
            if version == release or version.startswith((release + ".", release + "+")):
                return f"{self.package}.{name}"
        releases = ", ".join(sorted(self.modules))
        raise errors.NotSupported(f"{self.engine} {version}: {self.package} has adapters for the releases {releases}")

    def get(self, name: str) -> Any:
        """Return the attribute `name` of the module for the installed engine."""
        engine = importlib.import_module(self.engine.lower())
        return getattr(importlib.import_module(self.module(engine.__version__)), name)
