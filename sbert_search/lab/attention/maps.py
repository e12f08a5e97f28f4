"""The attention of every layer and head for one text or pair; figures and a page of it.

Source: Clark et al. 2019, What Does BERT Look At?, section 3 (arXiv:1906.04341).
"""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypedDict, Unpack

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sbert_search.base.device import resolve_device
from sbert_search.base.progress import warn
from sbert_search.config import to_mapping
from sbert_search.errors import ConfigError
from sbert_search.lab.inputs import framing_ids
from sbert_search.lab.templates import embed_json, fill_page, read_page_file, write_files
from sbert_search.models.encoder.encoder import Encoder
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.encoder.weights import load_encoder
from sbert_search.models.loading.folder import load_tokenizer, read_folder
from sbert_search.models.loading.resolve import resolve_model
from sbert_search.text.tokens.specials import readable_tokens
from sbert_search.text.tokens.tokenizer import TextTokenizer


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadFigures:
    """Figures of one head: means over the tokens of texts.

    Special tokens around a text, such as [CLS], are left out; unknown words ([UNK]) are not.
    """

    layer: int  # from 1
    head: int  # number in its layer, from 1
    entropy: float  # of the attention distribution of a token, in nats
    distance: float  # mean distance to attended tokens, weighted by attention; neighbours: 1
    first: float  # share of attention on the special token before the text, such as [CLS]
    separator: float  # share on special tokens after a text, such as [SEP]
    diagonal: float  # share of a token on itself
    previous: float  # share on the token to the left
    next: float  # share on the token to the right


NAMES = ("entropy", "distance", "first", "separator", "diagonal", "previous", "next")


class Roles(NamedTuple):
    """The roles of the tokens of a text or pair."""

    first: tuple[bool, ...]  # for each token, whether it is a special one before the text
    separator: tuple[bool, ...]  # whether it is another special one around a text

    @classmethod
    def of(cls, ids: Sequence[int], tokenizer: TextTokenizer, framing: set[int]) -> Roles:
        """Find the roles of token ids; ``framing`` are the ids of special tokens around texts."""
        before = len(tokenizer.single.before)
        return cls(
            tuple(place < before for place in range(len(ids))),
            tuple(place >= before and token in framing for place, token in enumerate(ids)),
        )

    @property
    def special(self) -> tuple[bool, ...]:
        """For each token, whether it is a special token around a text."""
        return tuple(a or b for a, b in zip(self.first, self.separator, strict=True))


def sum_text(probabilities: Tensor, roles: Roles) -> Tensor:
    """Sum the figures over the tokens of a text that are not special.

    ``probabilities`` are those of one layer, float (heads, length, length); each row adds up to 1.
    The sums are float64 (heads, 7), in the order of `NAMES`.
    """
    device, length = probabilities.device, probabilities.shape[-1]
    exact = probabilities.double()
    places = torch.arange(length, device=device)
    far = (places[:, None] - places).abs().double()
    kinds = [torch.tensor(kind, dtype=torch.float64, device=device) for kind in roles]
    by_token = torch.stack(
        [
            -torch.xlogy(exact, exact).sum(-1),
            (exact * far).sum(-1),
            exact @ kinds[0],
            exact @ kinds[1],
            exact.diagonal(dim1=-2, dim2=-1),
            torch.nn.functional.pad(exact.diagonal(-1, -2, -1), (1, 0)),
            torch.nn.functional.pad(exact.diagonal(1, -2, -1), (0, 1)),
        ],
        dim=-1,
    )  # (heads, length, 7)
    words = ~torch.tensor(roles.special, device=device)
    return by_token[:, words].sum(1)


def head_figures(sums: Tensor, tokens: int) -> tuple[HeadFigures, ...]:
    """Divide sums, float (layers, heads, 7), by the number of tokens to get the figures."""
    means = (sums / max(tokens, 1)).tolist()
    return tuple(
        HeadFigures(layer=layer, head=head, **dict(zip(NAMES, values, strict=True)))
        for layer, heads in enumerate(means, 1)
        for head, values in enumerate(heads, 1)
    )


STEPS = 65_535  # a probability p is stored as the 16-bit integer round(p * STEPS)


def make_page(record: Mapping[str, object], probabilities: NDArray[np.float32]) -> str:
    """Return a page that shows attention maps.

    ``record`` is the result of `AttentionMaps.to_mapping`; ``probabilities`` are float32 (layers,
    heads, length, length).
    """
    steps = np.round(probabilities.astype(np.float64) * STEPS).astype("<u2")
    data = {**record, "steps": STEPS, "values": base64.b64encode(steps.tobytes()).decode()}
    return fill_page(
        read_page_file(__file__, "attention.html"),
        title=f"Attention of {record['model']}",
        style=read_page_file(__file__, "attention.css"),
        script=read_page_file(__file__, "attention.js"),
        data={"DATA": embed_json(data)},
    )


PAGE_NUMBERS = 20_000_000  # largest number of probabilities on a page, which then has 55 MB


@dataclass(frozen=True, kw_only=True, eq=False)
class AttentionMaps:
    """The result of `analyze_attention`.

    Attributes:
        model: Name of the model.
        tokens: The tokens, special ones included.
        segments: Text of each token: 0 for the first text, 1 for the second.
        special: For each token, whether it is a special token around a text, such as [CLS] or
            [SEP]; [UNK] is not.
        probabilities: Float32 (layers, heads, length, length). Entry (l, h, i, j) is how much token
            i attends to token j; each row adds up to 1.
        heads: Figures of each head for this text.

    Example:
        >>> maps = analyze_attention("my-model", "the cat sat", device="cpu")
        >>> maps.tokens
        ('[CLS]', 'the', 'cat', 'sat', '[SEP]')
    """

    model: str
    tokens: tuple[str, ...]
    segments: tuple[int, ...]
    special: tuple[bool, ...]
    probabilities: NDArray[np.float32]
    heads: tuple[HeadFigures, ...]

    def to_mapping(self) -> dict[str, object]:
        """Return everything but the probabilities as JSON values."""
        layers, heads = self.probabilities.shape[:2]
        return {
            "model": self.model,
            "tokens": list(self.tokens),
            "segments": list(self.segments),
            "special": list(self.special),
            "layers": layers,
            "heads_of_a_layer": heads,
            "heads": [to_mapping(each) for each in self.heads],
        }

    def write(self, out: str | Path) -> list[Path]:
        """Write ``attention.npz``, ``attention.json`` and ``attention.html``; return their paths.

        The page is left out if it would be too large for a browser.
        """
        arrays = io.BytesIO()
        np.savez_compressed(
            arrays,
            probabilities=self.probabilities,
            tokens=np.array(self.tokens),
            segments=np.array(self.segments),
            special=np.array(self.special),
        )
        record = json.dumps(self.to_mapping(), indent=1, ensure_ascii=False) + "\n"
        contents = {"attention.npz": arrays.getvalue(), "attention.json": record.encode()}
        if self.probabilities.size > PAGE_NUMBERS:
            warn(
                f"{self.probabilities.size:,} probabilities are too many for a page; the other "
                "files have them. Give a text of fewer tokens for a page."
            )
        else:
            page = make_page(self.to_mapping(), self.probabilities)
            contents["attention.html"] = page.encode()
        return write_files(out, contents)


class AttentionOptions(TypedDict, total=False):
    """Options of `analyze_attention`.

    Attributes:
        device: Device of the model, as for `Embedder`. The model computes in fp32.
    """

    device: str


@torch.inference_mode()
def analyze_attention(
    model: str | Path | None,
    text: str,
    second: str | None = None,
    **options: Unpack[AttentionOptions],
) -> AttentionMaps:
    """Compute the attention of every layer and head for a text or a pair of texts.

    Args:
        model: Name or folder of a bi-encoder, a cross-encoder or an encoder; None: the default
            model of `Embedder`. This package's own encoder must support its architecture.
        text: The text; it is cut off at the limit of the model. No prompt is put before it.
        second: Second text of a pair, as a cross-encoder reads it.
        options: The device.

    Raises:
        ConfigError: The text is blank or gives no tokens, or the device is not available.
        CorpusError: A text has a lone surrogate.
        ModelError: The model cannot be found or loaded, or has an unsupported architecture.

    Example:
        >>> maps = analyze_attention("my-model", "the cat sat", device="cpu")
        >>> maps.probabilities.shape  # layers, heads, tokens, tokens
        (2, 2, 5, 5)
    """
    name, encoder, tokenizer = open_encoder(model, options.get("device", "auto"))
    for shown, each in (("TEXT", text), ("TEXT2", second)):
        if each is not None and not each.strip():
            raise ConfigError(f"{shown} is blank; give a sentence.")
    if second is None:
        (ids,), lost = tokenizer.encode([text])
        types = [0] * len(ids)
    else:
        pairs = tokenizer.encode_pairs([(text, second)])
        (ids,), (types,), lost = pairs.ids, pairs.types, pairs.lost
    if lost[0]:
        warn(f"{lost[0]:,} tokens were cut off; the model reads {tokenizer.max_len}.")
    roles = Roles.of(ids, tokenizer, framing_ids(tokenizer))
    if all(roles.special):
        raise ConfigError(f"{text!r} has no character that the model reads; give a sentence.")
    device = encoder.embeddings.word.weight.device
    has_types = encoder.config.token_type_vocab > 1
    tokens = PackedTokens.from_lists([ids], [types] if has_types else None, device=device)
    output = encoder(tokens, output_attentions=True)
    sums = torch.stack([sum_text(of_text.cpu(), roles) for (of_text,) in output.attentions])
    probabilities = torch.stack([of_text for (of_text,) in output.attentions])
    return AttentionMaps(
        model=name,
        tokens=tuple(readable_tokens(tokenizer, ids)),
        segments=tuple(types) if any(types) or second is None else _segments(tokenizer, ids),
        special=roles.special,
        probabilities=probabilities.float().cpu().numpy(),
        heads=head_figures(sums, roles.special.count(False)),
    )


def open_encoder(model: str | Path | None, device: str) -> tuple[str, Encoder, TextTokenizer]:
    """Load the encoder of any model folder, in float32, with its name and its tokenizer."""
    target = resolve_device(device)
    resolved = resolve_model(model)
    folder = read_folder(resolved.path)
    encoder = load_encoder(folder.transformer_path).to(target).eval()
    return resolved.name, encoder, load_tokenizer(folder)


def _segments(tokenizer: TextTokenizer, ids: list[int]) -> tuple[int, ...]:
    """Find the text of each token of a pair by the special tokens between the two texts."""
    between = tokenizer.pair.between
    ends = (n for n in range(len(ids)) if ids[n : n + len(between)] == between)
    border = next(ends, len(ids)) + len(between)
    return (0,) * border + (1,) * (len(ids) - border)
