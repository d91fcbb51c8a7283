"""Engines' interfaces change from release to release: each that is supported has a module, named after its first release."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from . import errors


@dataclass(frozen=True)
class Adapters:
    """The modules of a package for an engine's releases: by the beginning of its version, up to a dot or a plus sign."""

    package: str
    engine: str
    modules: Mapping[str, str]

    def module(self, version: str) -> str:
        """The module for a version of the engine. NotSupported where there is none."""
        for release, name in self.modules.items():
            if version == release or version.startswith((release + ".", release + "+")):
                return f"{self.package}.{name}"
        releases = ", ".join(sorted(self.modules))
        raise errors.NotSupported(f"{self.engine} {version}: {self.package} has adapters for the releases {releases}")

    def get(self, name: str) -> Any:
        """What the module for the engine that is installed has by that name."""
        engine = importlib.import_module(self.engine.lower())
        return getattr(importlib.import_module(self.module(engine.__version__)), name)
