"""A server in a thread of the test, for limits and applications that the command does not offer."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, cast

import uvicorn
from starlette.types import ASGIApp

from sbert_search.serve.access import AccessTokens, ServerLimits
from sbert_search.serve.app import build_app
from sbert_search.serve.server import GuardedProtocol, open_socket
from sbert_search.serve.state import ServeSettings, open_served


@contextmanager
def served_in_thread(
    limits: ServerLimits, indexes: Mapping[str, Path] | None = None
) -> Iterator[int]:
    """Serve the hashing model, and indexes, and yield the port."""
    settings = ServeSettings(
        indexes=indexes or {},
        models=[] if indexes else ["hashing"],
        tokens=AccessTokens({}),
        limits=limits,
    )
    with app_in_thread(build_app(open_served(settings)), limits) as port:
        yield port


@contextmanager
def app_in_thread(app: ASGIApp, limits: ServerLimits) -> Iterator[int]:
    """Serve an application, and yield the port."""
    config = uvicorn.Config(
        app,
        http=cast("Any", partial(GuardedProtocol, limits)),
        ws="none",
        log_config=None,
        timeout_keep_alive=int(limits.keep_alive_s),
        timeout_graceful_shutdown=5,
    )
    server = uvicorn.Server(config)
    with open_socket("127.0.0.1", 0) as bound:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [bound]})
        thread.start()
        try:
            while not server.started:
                time.sleep(0.01)
            yield bound.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join()
