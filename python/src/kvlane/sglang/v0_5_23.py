"""What SGLang 0.5.23 loads."""

from .linker import Linker
from .storage import Storage

__all__ = ["Linker", "Storage"]
