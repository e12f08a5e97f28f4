"""Retrieve and cite with LlamaIndex, without a language model.

Install the extras cpu, model and llamaindex, then: python examples/integrations/llamaindex.py
"""

from llama_index.core import PromptTemplate, StorageContext, VectorStoreIndex
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores import FilterOperator, MetadataFilter, MetadataFilters

from sbert_search.integrations.llamaindex import SbertSearchEmbedding, SbertSearchVectorStore

NOTES = [
    ("tides", 2021, "The pull of the moon raises the water of the sea twice a day."),
    ("dunes", 2019, "Wind heaps sand into dunes along a dry coast."),
    ("bread", 2023, "Dough rises because yeast makes gas out of sugar."),
    ("herons", 2020, "Herons wait in shallow water until a fish comes near."),
]
PROMPT = PromptTemplate("Cite the sources in [].\n\n{context}\n\n{question}")

model = SbertSearchEmbedding()
store = SbertSearchVectorStore(embed_model=model)  # path="notes.index" would keep it
nodes = [TextNode(id_=key, text=text, metadata={"year": year}) for key, year, text in NOTES]
storage = StorageContext.from_defaults(vector_store=store)
index = VectorStoreIndex(nodes, storage_context=storage, embed_model=model)

recent = MetadataFilter(key="year", value=2020, operator=FilterOperator.GTE)
retriever = index.as_retriever(
    similarity_top_k=2,
    vector_store_query_mode="hybrid",
    filters=MetadataFilters(filters=[recent]),
)
question = "Why does the ocean go up and down?"
found = retriever.retrieve(question)
context = "\n".join(f"[{each.node_id}] {each.text}" for each in found)
print(PROMPT.format(context=context, question=question))
