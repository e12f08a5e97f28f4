"""Index a CSV file, then search it by meaning and words, with a filter.

Run it: python examples/csv_hybrid.py
"""

import tempfile
from pathlib import Path

from sbert_search import Index, SearchEngine

BOOKS = """\
id;title;text;year;shelf
b1;The tides of the north sea;The moon pulls the water twice a day.;1931;science
b2;Bread at home;Flour, water, salt and yeast, and the patience to wait.;1987;food
b3;Mills of the valley;A river turned the wheels that ground the grain.;1964;history
b4;Moonlight;A novel of two sisters on an island with one lighthouse.;1999;novel
b5;Sourdough;A starter of flour and water, fed every day.;2014;food
"""

with tempfile.TemporaryDirectory() as folder:
    table = Path(folder, "books.csv")
    table.write_text(BOOKS, encoding="utf-8")  # the header shows that semicolons separate cells
    engine = SearchEngine(Index.build(table, out=Path(folder, "books.index")))
    for where in (None, "year >= 1980 AND shelf = 'food'"):
        print(f"filter: {where}")
        for hit in engine.search("why does the sea rise and fall", 3, mode="hybrid", where=where):
            print(f"  {hit.score:.2f} {hit.title} ({hit.metadata['year']})")
