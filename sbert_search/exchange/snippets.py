"""The Python code that embeds a question as the model of an index does."""

from __future__ import annotations

from sbert_search.exchange.plan import ExportPlan

QUESTION = "your question"


def question_vector(plan: ExportPlan) -> str:
    """Return code that sets ``vector`` to the vector of a question, a list of floats.

    If the index has no model, the code sets zeros, with a comment that asks for a vector.
    """
    identity = plan.identity
    if not identity.is_model:
        return (
            "# The index has no model. Put the vector of your question here.\n"
            f"vector = [0.0] * {plan.dim}\n"
        )
    if identity.engine == "hashing":
        opened = (
            "from sbert_search.embed.hashing import HashingEmbedder\n\n"
            f"model = HashingEmbedder({plan.dim})\n"
        )
    else:
        opened = f"from sbert_search import Embedder\n\nmodel = Embedder({identity.name!r})\n"
    prompt = identity.prompts.get("query") or identity.prompts.get("")
    said = f"# The model puts {prompt!r} before a question.\n" if prompt else ""
    return f"{opened}{said}vector = model.encode_query([{QUESTION!r}])[0].tolist()\n"
