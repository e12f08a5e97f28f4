"""Check every tensor when sentence-transformers loads a model.

If the files lack a parameter, transformers fills the parameter with random numbers. If the files
have a tensor that the model does not use, transformers drops the tensor. transformers logs both
cases and raises no error. This module sets missing parameters to NaN and computes the result of a
test text. If the result is NaN, the model uses a missing parameter, and this module raises an
error. It also raises an error if a tensor of the encoder was dropped. A dropped tensor of an unused
head is allowed. See "Missing parameters become NaN" in docs/decisions.md.
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
from sbert_search.encoder.tensors import first_names
from sbert_search.errors import WeightsError

# Names of buffers that older versions of transformers saved; any prefix may come before the name.
_BUFFER = re.compile(r"(^|\.)(position_ids|token_type_ids|inv_freq|masked_bias|attn\.bias)$")
_patching = threading.Lock()


@dataclass(frozen=True, eq=False)
class Loaded:
    """One model that transformers loaded, and the report of transformers on its tensors.

    Attributes:
        model: The model, with random numbers in missing parameters.
        missing: Parameters that no file has.
        unexpected: Tensors of the files that the model does not use.
        mismatched: Parameters that have another shape in the files.
    """

    model: Any
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    mismatched: tuple[str, ...]


@contextlib.contextmanager
def watched_loads() -> Iterator[list[Loaded]]:
    """Collect the report of transformers on each model that this thread loads in the context.

    In the context, transformers logs only errors and shows no progress bar.
    """
    # sentence-transformers has no argument that returns the report. So this function patches
    # `from_pretrained` of transformers, which sentence-transformers calls. Other threads may load
    # models at the same time: a lock allows one patch at a time, and the patched method calls the
    # original one in all threads but this.
    from transformers import PreTrainedModel
    from transformers.utils import logging

    original = PreTrainedModel.__dict__["from_pretrained"]
    this_thread, loads = threading.get_ident(), list[Loaded]()

    def from_pretrained(cls: Any, *args: Any, **kwargs: Any) -> Any:
        load = original.__get__(None, cls)
        if threading.get_ident() != this_thread or kwargs.get("output_loading_info"):
            return load(*args, **kwargs)
        options = {"output_loading_info": True, "ignore_mismatched_sizes": True}
        model, info = load(*args, **kwargs | options)
        wrong_shape = (key if isinstance(key, str) else key[0] for key in info["mismatched_keys"])
        loads.append(
            Loaded(
                model,
                tuple(sorted(info["missing_keys"])),
                tuple(sorted(info["unexpected_keys"])),
                tuple(sorted(wrong_shape)),
            )
        )
        return model

    with _patching, _quiet(logging):
        setattr(PreTrainedModel, "from_pretrained", classmethod(from_pretrained))  # noqa: B010
        try:
            yield loads
        finally:
            setattr(PreTrainedModel, "from_pretrained", original)  # noqa: B010


@contextlib.contextmanager
def _quiet(logging: Any) -> Iterator[None]:
    """Make transformers log only errors and show no progress bar while the context is open."""
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
    """Refuse a model that would compute with values that are not in its files.

    Args:
        where: The model's folder, for the message.
        loads: The loads that `watched_loads` collected.
        probe: Computes an embedding or a score with the model.

    Raises:
        WeightsError: A result of ``probe`` depends on parameters that the files lack or have in
            another shape. Or the files have tensors for a module of the model that the module does
            not use. The message names the tensors.
    """
    for load in loads:
        _refuse_left_over(where, load)
    absent = [name for load in loads for name in _poison(load)]
    if absent and not np.isfinite(probe()).all():
        wrong_shape = {name for load in loads for name in load.mismatched}
        shown = [f"{name} (other shape)" if name in wrong_shape else name for name in absent]
        raise WeightsError(
            f"{where}: the weights lack {first_names(shown)}, which the model needs. "
            "Take config.json and weights from one model."
        )


def _refuse_left_over(where: object, load: Loaded) -> None:
    """Refuse unused tensors that belong to a module of the model, such as those of extra layers."""
    encoder = load.model.base_model
    layout = LAYOUTS.get(str(load.model.config.model_type))
    heads = layout.model_heads if layout else ()
    modules = {name for name, _ in encoder.named_children()}
    if encoder is not load.model:
        modules |= {name for name, _ in load.model.named_children()}
    prefix = f"{load.model.base_model_prefix}."
    left = [
        name
        for name in load.unexpected
        if not _BUFFER.search(name)
        and name.removeprefix(prefix).partition(".")[0] in modules
        and (not name.removeprefix(prefix).startswith(heads) or encoder is not load.model)
    ]
    if left:
        raise WeightsError(
            f"{where}: the model does not use {first_names(left)} of its weights. "
            "Take config.json and weights from one model."
        )


def _poison(load: Loaded) -> list[str]:
    """Set every parameter that did not come from the files to NaN; return their names.

    Parameters that do not hold floating-point numbers stay unchanged.
    """
    state: dict[str, nn.Parameter] = load.model.state_dict()
    absent = [name for name in (*load.missing, *load.mismatched) if name in state]
    loaded = {state[name].data_ptr() for name in state.keys() - set(absent)}
    poisoned = []
    for name in absent:
        tensor = state[name]
        # A parameter that shares the memory of a loaded parameter (tied weights) is loaded too.
        if tensor.is_floating_point() and tensor.data_ptr() not in loaded:
            tensor.fill_(float("nan"))
            poisoned.append(name)
    return poisoned
