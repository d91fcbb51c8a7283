"""The classes for SGLang 0.5.23."""

from .linker import Linker
from .storage import Storage

__all__ = ["Linker", "Storage"]
