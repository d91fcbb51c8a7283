"""Checks of configurations before they go to the library or into an identity."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from . import _lib, errors


def encode(config: Mapping[str, Any]) -> str:
    """Return a configuration as JSON, with paths as texts.

    Raises Invalid for a value that JSON cannot represent.
    """

    def path(value: Any) -> Any:
        if isinstance(value, os.PathLike):
            return os.fsdecode(value)
        raise errors.Invalid(f"configuration: {value!r} is a {type(value).__name__}: use strings, numbers, lists and objects")

    try:
        return json.dumps(dict(config), default=path, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as e:
        if isinstance(e, errors.Error):
            raise
        raise errors.Invalid(f"configuration: {e}") from e


def merged(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return `config` merged with the file that its key `config` names.

    Keys of `config` override those of the file.
    """
    if "config" not in config:
        return dict(config)
    return dict(json.loads(_lib.library().text("read_config", encode(config).encode())))


def directories(store: Mapping[str, Any]) -> list[str]:
    """Return the directories of the section `store`. A text or a path is one directory."""
    given = store.get("dirs")
    if given is None:
        return []
    if isinstance(given, str | os.PathLike):
        given = [given]
    if not isinstance(given, list | tuple) or not all(isinstance(d, str | os.PathLike) for d in given):
        raise errors.Invalid(f"store.dirs is {given!r}: give a directory, or a list of directories")
    names = [os.fsdecode(d) for d in given]
    if "" in names:
        raise errors.Invalid("store.dirs has a directory without a name")
    return names


def persistent(store: Mapping[str, Any]) -> bool:
    """Report whether blocks of the section `store` outlive the process."""
    return bool(directories(store) or store.get("log_dir") or store.get("remote") or store.get("object"))


def with_folder(store: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the section `store` with the folder `name` in each directory, for one identity.

    All folders in a directory share its bound.
    """
    dirs = [os.path.join(d, name) for d in directories(store)]
    return {"shared_bound": True, **store, "dirs": dirs} if dirs else dict(store)


def tenant(value: Any) -> str:
    """Return a tenant's name.

    Raises Invalid unless it is a string: the number 1 and the string "1" would name one tenant.
    """
    if not isinstance(value, str):
        raise errors.Invalid(f"tenant is {value!r}: give a string")
    return value
