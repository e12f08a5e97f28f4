"""Classes of texts, in the form of text-embeddings-inference."""

from __future__ import annotations

from sbert_search.serve.classifier import Text
from sbert_search.serve.endpoint import AnyOperation, Call, Operation, Reply
from sbert_search.serve.model_schemas import LabelScore, PredictRequest
from sbert_search.serve.problems import Problem
from sbert_search.serve.state import Served


async def predict(served: Served, call: Call[PredictRequest]) -> Reply:
    """Classify texts or pairs of texts; the most probable class is first."""
    body = call.body
    model = served.classifier(body.model)
    single, texts = _texts(body.inputs)
    served.require_items(len(texts), "inputs")
    logits = await model.logits(texts, call.work, cuts=body.truncate is not False)
    rows = (logits if body.raw_scores else model.classifier.probabilities(logits)).tolist()
    answers = []
    for row in rows:
        scored = zip(row, model.classifier.labels, strict=True)
        labels = [LabelScore(score=score, label=label) for score, label in scored]
        answers.append(sorted(labels, key=lambda one: -one.score))
    return Reply(answers[0] if single else answers)


def _texts(inputs: str | list[str | list[str]]) -> tuple[bool, list[Text]]:
    """Return whether there is a single input, and the texts and pairs."""
    if isinstance(inputs, str):
        return True, [inputs]
    single = bool(inputs) and all(isinstance(one, str) for one in inputs)
    listed = [inputs] if single else inputs
    texts: list[Text] = []
    for at, one in enumerate(listed):
        if isinstance(one, str) or not 1 <= len(one) <= 2:
            message = 'Send a text, a pair ["a", "b"], or several pairs, [["a", "b"], ["c", "d"]].'
            raise Problem(400, message, "inputs" if single else f"inputs[{at}]")
        texts.append(one[0] if len(one) == 1 else (one[0], one[1]))  # type: ignore[arg-type]
    return single, texts


_RESPONSE = list[LabelScore | list[LabelScore]]
ROOT: AnyOperation = Operation(
    "POST", "/", predict, _RESPONSE, PredictRequest, style="tei", versioned=False
)
OPERATIONS: tuple[AnyOperation, ...] = (
    Operation("POST", "/predict", predict, _RESPONSE, PredictRequest, style="tei"),
)
