"""Addresses at which the processes of an engine serve their metrics."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from . import errors

_T = TypeVar("_T")


def address(addr: str, ranks: int, rank: int | None, replica: int = 0) -> str:
    """Return the address of one process of an engine of `ranks` workers.

    rank None is the scheduler.

    HOST:PORT is PORT for the scheduler and PORT + 1 + rank for a worker. Data-parallel replicas
    follow each other. In the path of unix:/PATH {rank} becomes the worker's number among all
    replicas, or "scheduler" and the replica's number.
    """
    if addr.startswith("unix:"):
        name = f"scheduler{replica or ''}" if rank is None else str(replica * ranks + rank)
        return addr.replace("{rank}", name)
    host, colon, port = addr.rpartition(":")
    if not colon or not port.isascii() or not port.isdigit() or not port.strip("0"):
        raise errors.Invalid(f"metrics_addr {addr!r} is neither HOST:PORT nor unix:/PATH")
    own = int(port) + replica * (ranks + 1) + (0 if rank is None else 1 + rank)
    if own > 65535:
        raise errors.Invalid(f"metrics_addr {addr!r}: rank {rank} of replica {replica} would have port {own}, above 65535")
    return f"{host}:{own}"


def opened(make: Callable[[dict[str, Any]], _T], config: Mapping[str, Any], logger: logging.Logger) -> _T:
    """Return make(config). If metrics_addr cannot be served, log a warning and open without it."""
    try:
        return make(dict(config))
    except errors.Error as e:
        if not config.get("metrics_addr") or "serve metrics on " not in str(e):
            raise
        logger.warning("kvlane: metrics are not served: %s", e)
    return make({k: v for k, v in config.items() if k != "metrics_addr"})
