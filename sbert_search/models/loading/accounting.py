"""Accounting for every tensor when sentence-transformers loads a model.

transformers gives a parameter that its files lack random numbers, drops a tensor that the model has
no place for, and only logs both. Here a missing parameter becomes NaN, so that whatever depends on
it shows, and a dropped tensor of the encoder's body is refused; heads that were left out are not.
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from sbert_search.encoder.layouts import LAYOUTS
from sbert_search.errors import WeightsError

# Buffers of older versions, under any name before these endings.
_BUFFER = re.compile(r"(^|\.)(position_ids|token_type_ids|inv_freq|masked_bias|attn\.bias)$")
_patching = threading.Lock()


@dataclass(frozen=True, eq=False)
class Loaded:
    """What transformers said of one model that it loaded.

    Attributes:
        model: The model, its missing parameters filled at random.
        missing: Parameters that no file has.
        unexpected: Tensors of the files that the model has no place for.
        mismatched: Parameters that the files have in another shape.
    """

    model: Any
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: tuple[str, ...]


@contextlib.contextmanager
def watched_loads() -> Iterator[list[Loaded]]:
    """Collect what transformers says of each model that this thread loads meanwhile.

    Its own report, a table in the log, and its progress bar are left out. There is no argument of
    sentence-transformers that asks for this, so the method that it calls is wrapped.
    """
    from transformers import PreTrainedModel
    from transformers.utils import logging

    original = PreTrainedModel.__dict__["from_pretrained"]
    mine, seen = threading.get_ident(), list[Loaded]()

    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        load = original.__get__(None, cls)
        if threading.get_ident() != mine or kwargs.get("output_loading_info"):
            return load(*args, **kwargs)
        asked = {"output_loading_info": True, "ignore_mismatched_sizes": True}
        model, told = load(*args, **kwargs | asked)
        wrong_shape = (key if isinstance(key, str) else key[0] for key in told["mismatched_keys"])
        seen.append(
            Loaded(
                model,
                tuple(sorted(told["missing_keys"])),
                tuple(sorted(told["unexpected_keys"])),
                tuple(sorted(wrong_shape)),
            )
        )
        return model

    with _patching, _quiet(logging):
        setattr(PreTrainedModel, "from_pretrained", classmethod(from_pretrained))  # noqa: B010
        try:
            yield seen
        finally:
            setattr(PreTrainedModel, "from_pretrained", original)  # noqa: B010


@contextlib.contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """Let transformers log errors alone and show no bar, for a while."""
    before, bar = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bar:
            logging.enable_progress_bar()


def require_accounted(
    where: object, loads: list[Loaded], probe: Callable[[], NDArray[np.float32]]
) -> None:
    """Refuse a model that would compute with numbers that are not in its files.

    Args:
        where: The model's folder, for the message.
        loads: What `watched_loads` saw.
        probe: Computes vectors or scores.

    Raises:
        WeightsError: Naming the tensors that are missing, of another shape, or left over.
    """
    for load in loads:
        _refuse_left_over(where, load)
    absent = [name for load in loads for name in _poison(load)]
    if absent and not np.isfinite(probe()).all():
        wrong_shape = {name for load in loads for name in load.mismatched}
        told = [f"{name} (other shape)" if name in wrong_shape else name for name in absent]
        raise WeightsError(
            f"{where}: the weights lack {_listed(told)}, which the model computes with. "
            "Take config.json and weights from one model."
        )


def _refuse_left_over(where: object, load: Loaded) -> None:
    """Refuse tensors that lie where the model has layers, such as one layer more than it has."""
    body = load.model.base_model
    layout = LAYOUTS.get(str(load.model.config.model_type))
    heads = layout.heads if layout else ()
    owned = {name for name, _ in body.named_children()}
    if body is not load.model:
        owned |= {name for name, _ in load.model.named_children()}
    prefix = f"{load.model.base_model_prefix}."
    left = [
        name
        for name in load.unexpected
        if not _BUFFER.search(name)
        and name.removeprefix(prefix).partition(".")[0] in owned
        and (not name.removeprefix(prefix).startswith(heads) or body is not load.model)
    ]
    if left:
        raise WeightsError(
            f"{where}: the model has no place for {_listed(left)} of its weights. "
            "Take config.json and weights from one model."
        )


def _poison(load: Loaded) -> list[str]:
    """Make every parameter NaN that did not come from the files, and name them."""
    state: dict[str, nn.Parameter] = load.model.state_dict()
    absent = [name for name in (*load.missing, *load.mismatched) if name in state]
    filled = {state[name].data_ptr() for name in state.keys() - set(absent)}
    poisoned = []
    for name in absent:
        tensor = state[name]
        if tensor.is_floating_point() and tensor.data_ptr() not in filled:
            tensor.fill_(float("nan"))
            poisoned.append(name)
    return poisoned


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return ", ".join(names[:5]) + more
