"""OpenTelemetry spans, by the package opentelemetry-api if it is installed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from . import errors
from ._version import __version__


class Span:
    """The span of an operation in progress. end may be called several times."""

    def __init__(self, span: Any, failed: Any) -> None:
        self._span, self._failed = span, failed

    def end(self, error: str = "") -> None:
        """End the span, with an error unless that is empty."""
        if self._span is None:
            return
        span, self._span = self._span, None
        if error:
            span.set_status(self._failed, error)
        span.end()


class Tracer:
    """Begins spans by a TracerProvider, or by the program's global one.

    Raises NotSupported if the package opentelemetry-api is not installed.
    """

    def __init__(self, provider: Any = None) -> None:
        try:
            from opentelemetry import propagate, trace
        except ImportError as e:
            raise errors.NotSupported("traces need the package opentelemetry-api: pip install opentelemetry-api") from e
        self._extract, self._failed = propagate.extract, trace.StatusCode.ERROR
        self._tracer = trace.get_tracer("kvlane", __version__, tracer_provider=provider)

    def begin(self, operation: str, blocks: int, headers: Mapping[str, str] | None = None) -> Span:
        """Begin the span kvlane.OPERATION.

        Its parent is in headers, as W3C Trace Context, or is the current span of the caller.
        """
        context = self._extract(headers) if headers else None
        return Span(self._tracer.start_span(f"kvlane.{operation}", context, attributes={"kvlane.blocks": blocks}), self._failed)

    @contextmanager
    def span(self, operation: str, blocks: int, headers: Mapping[str, str] | None = None) -> Iterator[None]:
        """Make the span of an operation that ends with the block."""
        span, error = self.begin(operation, blocks, headers), ""
        try:
            yield
        except Exception as e:
            error = str(e)
            raise
        finally:
            span.end(error)
