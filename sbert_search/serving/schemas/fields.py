"""Types of fields that several requests share."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Position = Annotated[int, Meta(ge=0, le=1_000_000)]
Share = Annotated[float, Meta(ge=0, le=1)]

JsonScalar = str | int | float | bool
JsonValue = str | int | float | bool | list[JsonScalar] | None
"""A metadata value in JSON; dates and times are texts in ISO 8601."""


class Usage(Struct, kw_only=True):
    """What a request cost.

    Attributes:
        prompt_tokens: Tokens that the model read.
        total_tokens: The same number, as clients of OpenAI expect it.
        truncated_texts: Number of texts that were cut to what the model reads.
    """

    prompt_tokens: int
    total_tokens: int
    truncated_texts: int = 0
