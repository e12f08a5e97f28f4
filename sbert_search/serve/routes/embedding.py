"""Embeddings, similarities and token ids."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import partial
from typing import TypeVar, cast

import numpy as np

from sbert_search.embed.protocol import Task, Vectors
from sbert_search.embed.vectors import similarity, unit
from sbert_search.serve.embedder import Embedded, ServedEmbedder
from sbert_search.serve.endpoint import AnyOperation, Call, Operation, Reply
from sbert_search.serve.model_schemas import (
    Embedding,
    EmbeddingsRequest,
    EmbeddingsResponse,
    EmbedRequest,
    ModelCard,
    ModelList,
    SimilarityRequest,
    Token,
    TokenizeRequest,
)
from sbert_search.serve.problems import Problem
from sbert_search.serve.queue import Work, in_thread
from sbert_search.serve.search_schemas import Usage
from sbert_search.serve.state import Served

T = TypeVar("T")
Inputs = str | list[str | int | list[int]]


async def embeddings(served: Served, call: Call[EmbeddingsRequest]) -> Reply:
    """Embed texts or token ids, in the form of OpenAI."""
    body = call.body
    model, task, prompt_name = served.embedder(body.model), body.input_type, body.prompt_name
    if prompt_name is not None and task is not None:
        raise Problem(400, "input_type chooses a prompt too; send one of the two.", "prompt_name")
    done = await _embed(
        served, model, body.input, call.work, param="input", task=task, prompt_name=prompt_name
    )
    vectors = _shortened(model, done.vectors, body.dimensions)
    as_base64 = body.encoding_format == "base64"
    data = [
        Embedding(
            index=i,
            embedding=_base64(vector) if as_base64 else vector.tolist(),
            truncated=bool(lost),
        )
        for i, (vector, lost) in enumerate(zip(vectors, done.lost, strict=True))
    ]
    return Reply(EmbeddingsResponse(data=data, model=model.name, usage=usage_of(call.work)))


async def embed(served: Served, call: Call[EmbedRequest]) -> Reply:
    """Embed texts or token ids, in the form of text-embeddings-inference."""
    body = call.body
    model = served.embedder("")
    done = await _embed(
        served,
        model,
        body.inputs,
        call.work,
        param="inputs",
        prompt_name=body.prompt_name,
        cuts=body.truncate is not False,
    )
    vectors = _shortened(model, done.vectors, body.dimensions)
    if body.normalize is not False:
        vectors = unit(vectors)
    return Reply(vectors.tolist())


async def similarities(served: Served, call: Call[SimilarityRequest]) -> Reply:
    """Compare a sentence with others."""
    body = call.body
    model = served.embedder("")
    sentences = body.inputs.sentences
    served.require_items(len(sentences), "inputs.sentences")
    settings = body.parameters
    done = await model.embed(
        [body.inputs.source_sentence, *sentences],
        call.work,
        prompt_name=settings.prompt_name if settings else None,
        cuts=not (settings and settings.truncate is False),
        param="inputs",
    )
    compared = similarity(done.vectors[:1], done.vectors[1:], model.identity.similarity)
    return Reply(compared[0].tolist())


async def tokenize(served: Served, call: Call[TokenizeRequest]) -> Reply:
    """Turn texts into token ids."""
    body = call.body
    model = served.embedder("")
    texts = [body.inputs] if isinstance(body.inputs, str) else body.inputs
    served.require_items(len(texts), "inputs")
    tokenizer = model.tokenizer
    if tokenizer is None:
        raise Problem(400, f"The model {model.name} has no token ids.", "inputs")
    backend = tokenizer.backend
    prompt = model.tokenize([""], prompt_name=body.prompt_name).prompt
    adds = body.add_special_tokens is not False
    whole_texts = [prompt + text for text in texts]
    before, after = (
        [
            Token(id=one, text=backend.id_to_token(one) or "", special=True, start=None, stop=None)
            for one in side
        ]
        for side in (tokenizer.single.before, tokenizer.single.after)
    )
    answer = []
    encode = partial(tokenizer.encode_offsets, whole_texts)
    encoded = await in_thread(sum(map(len, texts)), encode)
    served.limits.require_tokens(sum(len(ids) for ids, _ in encoded), "inputs")
    for whole, (ids, offsets) in zip(whole_texts, encoded, strict=True):
        tokens = [
            Token(id=one, text=whole[start:stop], special=False, start=start, stop=stop)
            for one, (start, stop) in zip(ids, offsets, strict=True)
        ]
        answer.append([*before, *tokens, *after] if adds else tokens)
    return Reply(answer)


async def list_models(served: Served, call: Call[None]) -> Reply:
    """List the models of the server."""
    names = dict.fromkeys([*served.embedders, *served.rerankers])
    created = int(served.started_at)
    cards = [ModelCard(id=name, created=created, owned_by="sbert-search") for name in names]
    return Reply(ModelList(data=cards))


def usage_of(work: Work) -> Usage:
    """Return the numbers of tokens and of truncated texts of a request, for its answer."""
    return Usage(
        prompt_tokens=work.tokens, total_tokens=work.tokens, truncated_texts=work.truncated
    )


async def _embed(
    served: Served,
    model: ServedEmbedder,
    inputs: Inputs,
    work: Work,
    *,
    param: str,
    task: Task | None = None,
    prompt_name: str | None = None,
    cuts: bool = True,
) -> Embedded:
    """Embed a text, texts, the token ids of a text or those of several texts."""
    listed: Sequence[object] = [inputs] if isinstance(inputs, str) else inputs
    if listed and isinstance(listed[0], int):
        listed = [_all_of(int, listed, param)]
    served.require_items(len(listed), param)
    if isinstance(listed[0], list):
        ids = _all_of(list, listed, param)
        if prompt_name or task:
            message = "Token ids get no prompt; leave input_type and prompt_name out."
            raise Problem(400, message, param)
        return await model.embed_ids(ids, work, param=param)
    texts = _all_of(str, listed, param)
    return await model.embed(
        texts, work, task=task, prompt_name=prompt_name, cuts=cuts, param=param
    )


def _all_of(kind: type[T], listed: Sequence[object], param: str) -> list[T]:
    """Return a list whose items must all be of one kind."""
    for at, item in enumerate(listed):
        if not isinstance(item, kind):
            raise Problem(400, "Texts and token ids are mixed; send one kind.", f"{param}[{at}]")
    return cast("list[T]", listed)


def _shortened(model: ServedEmbedder, vectors: Vectors, dim: int | None) -> Vectors:
    """Keep the first ``dim`` dimensions; normalise again if the model's vectors have norm 1."""
    if dim is None or dim == vectors.shape[1]:
        return vectors
    if dim > vectors.shape[1]:
        raise Problem(
            400,
            f"{dim:,} dimensions; the model {model.name} has {vectors.shape[1]:,}.",
            "dimensions",
        )
    return unit(vectors[:, :dim]) if model.identity.normalize else vectors[:, :dim]


def _base64(vector: Vectors) -> str:
    return base64.b64encode(vector.astype(np.dtype("<f4")).tobytes()).decode("ascii")


OPERATIONS: tuple[AnyOperation, ...] = (
    Operation("POST", "/embeddings", embeddings, EmbeddingsResponse, EmbeddingsRequest),
    Operation("POST", "/embed", embed, list[list[float]], EmbedRequest, style="tei"),
    Operation("POST", "/similarity", similarities, list[float], SimilarityRequest, style="tei"),
    Operation("POST", "/tokenize", tokenize, list[list[Token]], TokenizeRequest, style="tei"),
    Operation("GET", "/models", list_models, ModelList),
)
