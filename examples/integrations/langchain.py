"""Retrieve and cite with LangChain, without a language model.

Run it: pip install -e '.[cpu,model,langchain]' && python examples/integrations/langchain.py
"""

from langchain_core.documents import Document
from langchain_core.prompts import ChatPromptTemplate

from sbert_search.integrations.langchain import (
    SbertSearchEmbeddings,
    SbertSearchRetriever,
    SbertSearchVectorStore,
)

NOTES = [
    ("tides", 2021, "The pull of the moon raises the water of the sea twice a day."),
    ("dunes", 2019, "Wind heaps sand into dunes along a dry coast."),
    ("bread", 2023, "Dough rises because yeast makes gas out of sugar."),
    ("herons", 2020, "Herons wait in shallow water until a fish comes near."),
]
PROMPT = ChatPromptTemplate.from_template("Cite the sources in [].\n\n{context}\n\n{question}")

store = SbertSearchVectorStore(SbertSearchEmbeddings())  # path="notes.index" would keep it
store.add_documents(
    [Document(id=key, page_content=text, metadata={"year": year}) for key, year, text in NOTES]
)
retriever = SbertSearchRetriever(store=store, k=2, mode="hybrid", filter={"year": {"$gte": 2020}})

question = "Why does the ocean go up and down?"
found = retriever.invoke(question)
context = "\n".join(f"[{document.id}] {document.page_content}" for document in found)
print(PROMPT.format(context=context, question=question))
