"""From pairs in, to a better model: judged, served and called by the client of OpenAI."""

import subprocess
import sys
import tempfile
from pathlib import Path

from openai import OpenAI

from sbert_search import FieldNames, Index, fine_tune
from sbert_search.evaluate import evaluate

pairs = Path(__file__).with_name("support.csv")
with tempfile.TemporaryDirectory() as out:
    tuned = fine_tune(pairs, out, epochs=4, lr=3e-4)
    index = Index.build(pairs, model=tuned.model, fields=FieldNames(text="positive"))
    print(f"nDCG@10 {tuned}", evaluate(index, f"{out}/pairs/held-out.jsonl", mode="dense"))
    serve = [sys.executable, "-m", "sbert_search", "serve", str(index.path), "--port", "0"]
    with subprocess.Popen(serve, stderr=subprocess.PIPE, text=True) as server:
        url = next(line.split()[-1] for line in server.stderr or () if "Serving" in line)
        client = OpenAI(base_url=f"{url}/v1", api_key="none")
        texts = ["My Talvo is frozen", "restart the dehumidifier", "restart the robot mower"]
        question, *others = client.embeddings.create(model="any", input=texts).data
        print([sum(map(float.__mul__, question.embedding, one.embedding)) for one in others])
        server.terminate()
