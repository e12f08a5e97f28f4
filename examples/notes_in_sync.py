"""Keep an index in sync with a folder of notes: build, change, sync and search.

Run it: python examples/notes_in_sync.py
"""

import tempfile
from pathlib import Path

from sbert_search import Index, SearchEngine

NOTES = {
    "README.md": "# My notes\n\nOne file for each thing that I learn.",
    "sea/tides.md": "# Tides\n\nThe moon pulls at the water of the sea twice a day.",
    "sea/dunes.txt": "Wind heaps up sand on the coast.",
    "kitchen/bread.html": "<title>Bread</title><p>Flour, water and yeast, and patience.</p>",
}

with tempfile.TemporaryDirectory() as temporary:
    notes = Path(temporary, "notes")
    for name, text in NOTES.items():
        (notes / name).parent.mkdir(parents=True, exist_ok=True)
        (notes / name).write_text(text, encoding="utf-8")
    index = Index.build(notes, out=Path(temporary, "notes.index"))
    engine = SearchEngine(index)

    (notes / "sea/tides.md").write_text("# Tides\n\nSun and moon pull at the sea.")
    (notes / "kitchen/dough.md").write_text("# Sourdough\n\nFeed the starter every day.")
    (notes / "sea/dunes.txt").unlink()
    report = index.sync(notes)  # from a shell: sbert-search index sync notes.index notes --watch
    print("added", report.added, "replaced", report.replaced, "deleted", report.deleted)
    print("unchanged", index.sync(notes).unchanged)  # nothing to do, so no model is loaded

    for hit in engine.search("why does bread rise?", 2, where="path LIKE 'kitchen/%'"):
        print(hit.doc_id, "|", hit.title, "|", hit.metadata["modified"])
