#!/usr/bin/env bash
# transformers 5.23.0: XLMRobertaTokenizer, and so AutoTokenizer for a folder that names this class,
# takes the vocabulary out of tokenizer.json but not its normalizer. Texts that the normalizer would
# change get other ids than from the tokenizers library, which reads the same file, and than from
# PreTrainedTokenizerFast. Here the normalizer is NFKC and lower case.
#
# Seen: tokenizers ['▁river', '▁mill']
#       PreTrainedTokenizerFast ['▁river', '▁mill']
#       AutoTokenizer (XLMRobertaTokenizer) ['▁RIVER', '▁mill']
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m pip install -q --target "$folder/packages" transformers==5.23.0 tokenizers==0.23.3
cd "$folder"
PYTHONPATH="$folder/packages" HF_HUB_OFFLINE=1 python3 - <<'PYTHON'
import json
from pathlib import Path

from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

pieces = ["<s>", "<pad>", "</s>", "<unk>", "▁river", "▁RIVER", "▁mill"]
made = Tokenizer(models.Unigram([(p, -float(n)) for n, p in enumerate(pieces)], unk_id=3))
made.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
made.pre_tokenizer = pre_tokenizers.Metaspace()
Path("model").mkdir()
made.save("model/tokenizer.json")
Path("model/tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "XLMRobertaTokenizer"}))
Path("model/config.json").write_text(json.dumps({"model_type": "xlm-roberta"}))

expected = made.encode("RIVER mill").tokens
fast = PreTrainedTokenizerFast.from_pretrained("model").tokenize("RIVER mill")
chosen = AutoTokenizer.from_pretrained("model")
found = chosen.tokenize("RIVER mill")
print("tokenizers", expected)
print("PreTrainedTokenizerFast", fast)
print(f"AutoTokenizer ({type(chosen).__name__})", found)
raise SystemExit(not (expected == fast == ["▁river", "▁mill"] and found == ["▁RIVER", "▁mill"]))
PYTHON
