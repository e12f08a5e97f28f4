"""Embeddings, similarities and token ids."""

from __future__ import annotations

import base64
import secrets
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TypeVar, cast

import numpy as np

from sbert_search.embed.protocol import Task, Vectors
from sbert_search.embed.vectors import quantize, similarity, unit
from sbert_search.serve.embedder import Embedded, ServedEmbedder
from sbert_search.serve.endpoint import AnyOperation, Call, Operation, Reply
from sbert_search.serve.model_schemas import (
    TASKS,
    ApiVersion,
    BilledUnits,
    CohereEmbeddings,
    CohereEmbedResponse,
    CohereInput,
    CohereMeta,
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
from sbert_search.serve.problems import Problem, Style
from sbert_search.serve.queue import Work, in_thread
from sbert_search.serve.search_schemas import Usage
from sbert_search.serve.state import Served

T = TypeVar("T")
Inputs = str | list[str | int | list[int]]


async def embeddings(served: Served, call: Call[EmbeddingsRequest]) -> Reply:
    """Embed texts or token ids, in the form of OpenAI."""
    body = call.body
    model, kind, prompt_name = served.embedder(body.model), body.input_type, body.prompt_name
    if None not in (kind, body.task) and kind != body.task:
        raise Problem(400, "input_type and task differ; send one of the two.", "task")
    kind = kind or body.task
    if prompt_name is not None and kind is not None:
        raise Problem(400, "input_type chooses a prompt too; send one of the two.", "prompt_name")
    task = TASKS[kind] if kind else None
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
    """Embed texts or token ids, in the form of text-embeddings-inference or of Cohere."""
    body = call.body
    if (body.inputs is None) == (body.texts is None):
        raise Problem(400, "Send either inputs or texts.", "inputs")
    texts = _contents(body.inputs) if body.texts is None else body.texts
    in_form_of_tei = texts is None
    inputs = cast("Inputs", body.inputs if texts is None else texts)
    model = served.embedder(body.model)
    done = await _embed(
        served,
        model,
        inputs,
        call.work,
        param="inputs" if in_form_of_tei else "texts",
        task=TASKS[body.input_type] if body.input_type else None,
        prompt_name=body.prompt_name,
        cuts=body.truncate not in (False, "NONE"),
        from_left=body.truncate == "START" or body.truncation_direction in ("left", "Left"),
    )
    vectors = _shortened(model, done.vectors, body.dimensions or body.output_dimension)
    if body.normalize is not False if in_form_of_tei else body.normalize:
        vectors = unit(vectors)
    if in_form_of_tei:
        return Reply(vectors.tolist())
    # Version 1 of Cohere's API returns plain lists unless types are named.
    by_type = call.scope.get("path") == "/v2/embed" or body.embedding_types is not None
    return Reply(
        CohereEmbedResponse(
            id=secrets.token_hex(8),
            response_type="embeddings_by_type" if by_type else "embeddings_floats",
            embeddings=_typed(vectors, body.embedding_types or ["float"])
            if by_type
            else vectors.tolist(),
            texts=texts or [],
            meta=CohereMeta(
                api_version=ApiVersion(version="2" if by_type else "1"),
                billed_units=BilledUnits(input_tokens=call.work.tokens),
            ),
        )
    )


def _contents(inputs: object) -> list[str] | None:
    """Return the texts of inputs in the form of Cohere; None: they have another form."""
    if not (isinstance(inputs, list) and any(isinstance(one, CohereInput) for one in inputs)):
        return None
    contents = _all_of(CohereInput, inputs, "inputs")
    return ["\n".join(part.text for part in one.content) for one in contents]


def _typed(vectors: Vectors, types: Sequence[str]) -> CohereEmbeddings:
    typed = CohereEmbeddings()
    if "float" in types:
        typed.float_ = vectors.tolist()
    if "base64" in types:
        typed.base64 = [_base64(vector) for vector in vectors]
    if "binary" in types:
        typed.binary = quantize(vectors, "binary").tolist()
    if "ubinary" in types:
        typed.ubinary = quantize(vectors, "ubinary").tolist()
    return typed


async def similarities(served: Served, call: Call[SimilarityRequest]) -> Reply:
    """Compare a sentence with others."""
    body = call.body
    model = served.embedder(body.model)
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
    model = served.embedder(body.model)
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
    names = dict.fromkeys(one.name for one in served.models)
    return Reply(ModelList(data=[_card(served, name) for name in names]))


async def get_model(served: Served, call: Call[None]) -> Reply:
    """Describe a model of the server."""
    name = call.path["id"]
    if name not in {one.name for one in served.models}:
        raise Problem(404, f"The server has no model {name!r:.200}; see /models.", "id")
    return Reply(_card(served, name))


def _card(served: Served, name: str) -> ModelCard:
    return ModelCard(id=name, created=int(served.started_at), owned_by="sbert-search")


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
    from_left: bool = False,
) -> Embedded:
    """Embed a text, texts, the token ids of a text or those of several texts.

    A text that is too long is refused, or with ``cuts``, its end or (``from_left``) start is cut.
    """
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
    if cuts and from_left:
        return await model.embed_ends(texts, work, task=task, prompt_name=prompt_name, param=param)
    return await model.embed(
        texts, work, task=task, prompt_name=prompt_name, cuts=cuts, param=param
    )


def _all_of(kind: type[T], listed: Sequence[object], param: str) -> list[T]:
    """Return a list whose items must all be of one kind."""
    for at, item in enumerate(listed):
        if not isinstance(item, kind):
            raise Problem(400, "The items are of several kinds; send one kind.", f"{param}[{at}]")
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


_EMBEDDED = list[list[float]] | CohereEmbedResponse
_BY_TEXTS: Mapping[str, Style] = {"texts": "cohere"}
OPERATIONS: tuple[AnyOperation, ...] = (
    Operation("POST", "/embeddings", embeddings, EmbeddingsResponse, EmbeddingsRequest),
    Operation("POST", "/", embed, _EMBEDDED, EmbedRequest, style="tei", versioned=False),
    Operation("POST", "/embed", embed, _EMBEDDED, EmbedRequest, style="tei", styles=_BY_TEXTS),
    Operation("POST", "/v2/embed", embed, _EMBEDDED, EmbedRequest, style="cohere", versioned=False),
    Operation("POST", "/similarity", similarities, list[float], SimilarityRequest, style="tei"),
    Operation("POST", "/tokenize", tokenize, list[list[Token]], TokenizeRequest, style="tei"),
    Operation("GET", "/models", list_models, ModelList),
    Operation("GET", "/models/{id:path}", get_model, ModelCard, problems=(404,)),
)
