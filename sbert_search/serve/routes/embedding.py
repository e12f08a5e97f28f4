"""Embeddings, similarities and token ids."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from functools import partial
from typing import TypeVar, cast

import numpy as np

from sbert_search.embed.protocol import Vectors
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
from sbert_search.serve.problems import Problem, invalid_problem
from sbert_search.serve.queue import Work, in_thread
from sbert_search.serve.search_schemas import Usage
from sbert_search.serve.state import Served

T = TypeVar("T")
Inputs = str | list[str | int | list[int]]


async def embeddings(served: Served, call: Call[EmbeddingsRequest]) -> Reply:
    """Embed texts or token ids, in the form of OpenAI."""
    body = call.body
    model = served.embedder(body.model)
    if body.prompt_name is not None and body.input_type is not None:
        raise invalid_problem(
            "prompt_name", "input_type chooses a prompt too; send one of the two."
        )
    done = await _embed(
        served,
        model,
        body.input,
        call.work,
        param="input",
        task=body.input_type,
        prompt_name=body.prompt_name,
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
        raise invalid_problem("inputs", f"The model {model.name} has no token ids.")
    prompt = model.tokenize([""], prompt_name=body.prompt_name).prompt
    adds = body.add_special_tokens is not False
    frame, backend = tokenizer.single, tokenizer.backend
    answer = []
    encode = partial(tokenizer.encode_offsets, [prompt + text for text in texts])
    encoded = await in_thread(sum(map(len, texts)), encode)
    served.limits.require_tokens(sum(len(ids) for ids, _ in encoded), "inputs")
    for text, (ids, offsets) in zip(texts, encoded, strict=True):
        whole = prompt + text
        tokens = [
            Token(id=one, text=whole[start:stop], special=False, start=start, stop=stop)
            for one, (start, stop) in zip(ids, offsets, strict=True)
        ]
        before, after = (
            [
                Token(
                    id=one,
                    text=backend.id_to_token(one) or "",
                    special=True,
                    start=None,
                    stop=None,
                )
                for one in side
            ]
            for side in (frame.before, frame.after)
        )
        answer.append([*before, *tokens, *after] if adds else tokens)
    return Reply(answer)


async def list_models(served: Served, call: Call[None]) -> Reply:
    """List the models of the server."""
    names = [
        *served.embedders,
        *(name for name in served.rerankers if name not in served.embedders),
    ]
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
    task: str | None = None,
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
    else:
        texts = _all_of(str, listed, param)
        return await model.embed(
            texts,
            work,
            task="query" if task == "query" else "document" if task == "document" else None,
            prompt_name=prompt_name,
            cuts=cuts,
            param=param,
        )
    if prompt_name or task:
        raise invalid_problem(
            param, "Token ids get no prompt; leave input_type and prompt_name out."
        )
    return await model.embed_ids(ids, work, param=param)


def _all_of(kind: type[T], listed: Sequence[object], param: str) -> list[T]:
    """Return a list whose items must all be of one kind."""
    for at, item in enumerate(listed):
        if not isinstance(item, kind):
            raise invalid_problem(f"{param}[{at}]", "Texts and token ids are mixed; send one kind.")
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
    Operation(
        method="POST",
        path="/embeddings",
        answer=embeddings,
        request=EmbeddingsRequest,
        response=EmbeddingsResponse,
        problems=(404,),
    ),
    Operation(
        method="POST",
        path="/embed",
        answer=embed,
        request=EmbedRequest,
        response=list[list[float]],
        style="tei",
        problems=(404,),
    ),
    Operation(
        method="POST",
        path="/similarity",
        answer=similarities,
        request=SimilarityRequest,
        response=list[float],
        style="tei",
        problems=(404,),
    ),
    Operation(
        method="POST",
        path="/tokenize",
        answer=tokenize,
        request=TokenizeRequest,
        response=list[list[Token]],
        style="tei",
        problems=(404,),
    ),
    Operation(
        method="GET",
        path="/models",
        answer=list_models,
        response=ModelList,
    ),
)
