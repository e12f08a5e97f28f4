"""The limits of tokens that a Transformer module of sentence-transformers 6 has of its own."""

from __future__ import annotations

from collections.abc import Mapping

from sbert_search.errors import ModelError

# Settings by which a module treats queries and documents differently.
_BY_TASK = ("query_length", "document_length", "query_expansion")
_CUTS = (True, "longest_first")  # values of "truncation" that do what the native tokenizer does


def require_one_length(where: object, settings: Mapping[str, object]) -> None:
    """Refuse a Transformer module that cuts queries and documents to lengths of their own.

    Raises:
        ModelError: A setting in `_BY_TASK` has a value.
    """
    for name in _BY_TASK:
        if (value := settings.get(name)) is not None:
            raise ModelError(
                f"{where}: {name} is {value!r}, which treats queries and documents differently; "
                f"this package needs one limit for both. Remove {name}, and set max_seq_length."
            )


def processing_limit(where: object, processing: object) -> int | None:
    """Return the ``max_length`` of a module's ``processing_kwargs``, which replaces other limits.

    Args:
        where: The file or model, for messages.
        processing: The value of the setting; None or {}: there is none.

    Raises:
        ModelError: The setting is malformed, or turns truncation off.
    """
    found = _of_texts(where, processing)
    if "truncation" in found and found["truncation"] in (None, False, "do_not_truncate"):
        raise ModelError(
            f"{where}: processing_kwargs turns truncation off, so the model would fail on long "
            "texts; remove truncation from it."
        )
    limit = found.get("max_length")
    if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int) or limit < 1):
        raise ModelError(
            f"{where}: max_length in processing_kwargs is {limit!r}; it must be a number of tokens."
        )
    return limit


def only_limits(where: object, processing: object) -> bool:
    """Whether ``processing_kwargs`` changes nothing of a text but its largest number of tokens."""
    found = dict(_of_texts(where, processing))
    found.pop("max_length", None)
    return found.pop("truncation", True) in _CUTS and not found


def _of_texts(where: object, processing: object) -> Mapping[str, object]:
    """Return what ``processing_kwargs`` says of texts; as in the library, ``common`` decides."""
    merged: dict[str, object] = {}
    named = processing if isinstance(processing, Mapping) else {}
    parts = [named.get(name) or {} for name in ("text", "common")]
    if not isinstance(processing or {}, Mapping) or not all(isinstance(p, Mapping) for p in parts):
        raise ModelError(
            f"{where}: processing_kwargs is {processing!r}; it must map text and common to "
            "settings."
        )
    for part in parts:
        merged.update(part)
    return merged
