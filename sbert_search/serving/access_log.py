"""The access log: one JSON object for each request, without texts."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime

from starlette.types import Scope

from sbert_search.serving.models.work import Work


class AccessLog:
    """Writes a line for each request.

    Args:
        emit: Writes the record of a request as a line.
        worker: Number of this process, if several serve; 0: it is alone.
    """

    def __init__(self, emit: Callable[[Mapping[str, object]], None], *, worker: int = 0) -> None:
        self._emit, self._worker = emit, worker

    def write(
        self,
        scope: Scope,
        route: str,
        status: int,
        seconds: float,
        work: Work,
        request_id: str,
        bug: Exception | None = None,
    ) -> None:
        """Write a request; status 499 means that the client hung up."""
        client = scope.get("client")
        record: dict[str, object] = {
            "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "request_id": request_id,
            "client": client[0] if client else "",
            "method": scope["method"],
            "route": route,
            "status": status,
            "ms": _ms(seconds),
        }
        if self._worker:
            record["worker"] = self._worker
        if work.texts:
            record |= {
                "texts": work.texts,
                "tokens": work.tokens,
                "truncated": work.truncated,
                "tokenization_ms": _ms(work.tokenization_s),
                "queue_ms": _ms(work.queue_s),
                "inference_ms": _ms(work.inference_s),
            }
        if work.search_s:
            record["search_ms"] = _ms(work.search_s)
        if bug is not None:
            record["error"] = "".join(traceback.format_exception(bug))
        with suppress(OSError, ValueError):  # if the reader of the log is gone, the server goes on
            self._emit(record)


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 2)
