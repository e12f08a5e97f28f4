"""A `functools.lru_cache` that keeps the signature of its function."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache  # noqa: TID251 (wrapped here)
from typing import ParamSpec, Protocol, TypeVar, cast

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)


class CachedFunction(Protocol[P, R_co]):
    """A function that caches its results by its arguments."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Return the cached result, or compute and cache it."""
        ...

    def cache_clear(self) -> None:
        """Forget all results."""


def typed_lru_cache(
    maxsize: int,
) -> Callable[[Callable[P, R_co]], CachedFunction[P, R_co]]:
    """Decorate a function with `functools.lru_cache`, so that its calls are type-checked.

    The type of `functools.lru_cache` accepts any hashable arguments, so mypy would not see that a
    call lacks one.

    Args:
        maxsize: Number of results that are kept; the least recently used is dropped.
    """

    def decorate(function: Callable[P, R_co]) -> CachedFunction[P, R_co]:
        return cast("CachedFunction[P, R_co]", lru_cache(maxsize)(function))

    return decorate
