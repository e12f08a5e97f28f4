"""Train a cross-encoder that sees what a bi-encoder overlooks: the direction of a trip.

It learns from trips between some cities and is measured on trips between other cities.
Run it: python examples/own_reranker.py
"""

import json
import tempfile
from itertools import permutations
from pathlib import Path

import sbert_search as ss

CITIES = "Berlin Dresden Essen Genoa Graz Leeds Lyon Milan Nantes Oslo Paris Rome York"
KNOWN, UNSEEN = CITIES.split(), ["Prague", "Lisbon", "Vienna", "Zagreb", "Naples", "Madrid"]
QUESTION = "how do I get from {} to {}"
ANSWER = "The train leaves {} in the morning and arrives in {} the same day."


def right_first(engine: ss.SearchEngine) -> str:
    """Say how often the first hit is the trip that was asked for, and not its way back."""
    trips = list(permutations(UNSEEN, 2))
    found = engine.search_many([QUESTION.format(*trip) for trip in trips], k=1, rerank_depth=4)
    right = sum(hits[0].text == ANSWER.format(*t) for hits, t in zip(found, trips, strict=True))
    return f"{right} of {len(trips)}"


index = ss.Index.from_texts(ANSWER.format(*trip) for trip in permutations(UNSEEN, 2))
print("bi-encoder alone: ", right_first(ss.SearchEngine(index)))
with tempfile.TemporaryDirectory() as folder:
    file, out = Path(folder, "train.jsonl"), Path(folder, "run")
    with file.open("w", encoding="utf-8") as lines:
        for trip, back in ((trip, trip[::-1]) for trip in permutations(KNOWN, 2)):
            texts = {"anchor": QUESTION.format(*trip), "positive": ANSWER.format(*trip)}
            print(json.dumps(texts | {"negative": ANSWER.format(*back)}), file=lines)
    values = [f"data.train={file}", "data.form=triplets", "data.negatives=1", "optim.lr=1e-4"]
    recipe = ss.load_recipe(ss.CrossEncoderRecipe, "cross-encoder", "relevance", values)
    ss.train_cross_encoder(recipe, out)
    reranker = ss.Reranker(out / "model")
    print("with the reranker:", right_first(ss.SearchEngine(index, reranker=reranker)))
