#!/usr/bin/env bash
# sentence-transformers 6.2.0: encode_document is documented to take the first of the prompts
# document, passage and corpus. But every model gets the prompt "document": "" by default, which comes
# first, so that a model with the prompts query and passage (the form of E5) embeds documents without
# any prompt, and nothing says so. encode_query does use its prompt.
#
# Seen: query prompt used True
#       passage prompt used False
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.13.0 sentence-transformers==6.2.0
HF_HUB_OFFLINE=1 "$folder/venv/bin/python" - <<'PYTHON'
import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import StaticEmbedding
from tokenizers import Tokenizer, models, pre_tokenizers

words = ["[UNK]", "query", "passage", ":", "river", "mill"]
tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
torch.manual_seed(0)
model = SentenceTransformer(
    modules=[StaticEmbedding(tokenizer, embedding_dim=8)],
    prompts={"query": "query: ", "passage": "passage: "},
)
text = ["river mill"]
used = {
    "query": np.allclose(model.encode_query(text), model.encode(text, prompt="query: ")),
    "passage": np.allclose(model.encode_document(text), model.encode(text, prompt="passage: ")),
}
for name, value in used.items():
    print(f"{name} prompt used", value)
assert np.allclose(model.encode_document(text), model.encode(text, prompt=""))
raise SystemExit(used != {"query": True, "passage": False})
PYTHON
