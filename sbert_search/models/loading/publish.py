"""Publish the folder of a model on the Hugging Face hub, with a model card."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Literal, TypeAlias, TypedDict, Unpack

from sbert_search.base.progress import note
from sbert_search.errors import ConfigError, ModelError
from sbert_search.models.loading.folder import ModelFolder
from sbert_search.models.loading.resolve import HUB_FILES, IGNORED_FILES

CardKind: TypeAlias = Literal["bi-encoder", "cross-encoder", "classify", "tag", "qa"]

FOLDER = "path/of/this/folder"  # placeholder in `USE` for the model's name
SCORES = "## Measured scores"

# A model folder has the file format of sentence-transformers or transformers, which many tools and
# the hub can load. So the card shows the API of this library, and `library_name` names the library.
USE: Mapping[str, str] = {
    "bi-encoder": """library_name: sentence-transformers
pipeline_tag: sentence-similarity
tags: [sentence-transformers, sentence-similarity, feature-extraction, sbert-search]
---

# A sentence encoder trained with sbert-search

```python
from sentence_transformers import SentenceTransformer

vectors = SentenceTransformer("path/of/this/folder").encode(["A text.", "Another one."])
```

`sbert-search index build SOURCE --out my.index --model path/of/this/folder` indexes with it.
""",
    "cross-encoder": """library_name: sentence-transformers
pipeline_tag: text-ranking
tags: [sentence-transformers, cross-encoder, reranker, sbert-search]
---

# A cross-encoder trained with sbert-search

```python
from sentence_transformers import CrossEncoder

scores = CrossEncoder("path/of/this/folder").predict([("A text.", "Another one.")])
```

`sbert-search search my.index QUERY --rerank path/of/this/folder` reranks with it.
""",
    "classify": """library_name: transformers
pipeline_tag: text-classification
tags: [text-classification, sbert-search]
---

# A classifier of texts trained with sbert-search

```python
from transformers import pipeline

classify = pipeline("text-classification", "path/of/this/folder")
print(classify("A text."))
```
""",
    "tag": """library_name: transformers
pipeline_tag: token-classification
tags: [token-classification, sbert-search]
---

# A tagger of tokens trained with sbert-search

```python
from transformers import pipeline

tag = pipeline("token-classification", "path/of/this/folder", aggregation_strategy="first")
print(tag("A text."))
```
""",
    "qa": """library_name: transformers
pipeline_tag: question-answering
tags: [question-answering, sbert-search]
---

# A model trained with sbert-search that finds the answer to a question in a text

```python
from transformers import AutoModelForQuestionAnswering

model = AutoModelForQuestionAnswering.from_pretrained("path/of/this/folder")
```
""",
}

# Use of a classifier whose head reads another state than the heads of transformers do.
USE_POOLED = """library_name: sbert-search
pipeline_tag: text-classification
tags: [text-classification, sbert-search]
---

# A classifier of texts trained with sbert-search

```python
from sbert_search import Predictor

print(Predictor("path/of/this/folder").classify(["A text."]))
```

The head reads another state than that of the first token (`sbert_search.json`), which the classes
of transformers read. They load this folder, but compute other logits.
"""

# Names of tasks in the hub's metadata, by the kind of an evaluation.
_TASKS: Mapping[str, str] = {
    "sts": "semantic-similarity",
    "retrieval": "information-retrieval",
    "rerank": "text-ranking",
    "triplets": "triplet",
    "tag": "token-classification",
    "qa": "question-answering",
}


@dataclass(frozen=True, slots=True)
class Measured:
    """The scores of a model on one task, as ``sbert-search eval ... --json`` prints them."""

    task: str
    kind: str  # of the evaluation, such as sts
    split: str
    scores: Mapping[str, float]  # by metric
    model_sha256: str  # of the weights that were measured


def read_scores(paths: Iterable[str | Path]) -> list[Measured]:
    """Read files with the output of ``sbert-search eval ... --json``."""
    measured = []
    for path in map(Path, paths):
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} cannot be read: {error}.") from error
        for number, line in enumerate(lines, start=1):
            if line.strip():
                measured.append(_measured(line, f"{path}:{number}"))
        if not any(map(str.strip, lines)):
            raise ConfigError(
                f"{path} holds no scores; write it with `sbert-search eval ... --json`."
            )
    return measured


def _measured(line: str, place: str) -> Measured:
    try:
        row = json.loads(line)
        names = (row["task"], row["kind"], row["split"], row["model_sha256"])
        scores = {str(name): float(value) for name, value in row["scores"].items()}
        if not all(isinstance(name, str) for name in names) or not scores:
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{place}: this is no result of `sbert-search eval ... --json`; use its output."
        ) from error
    # Undefined scores, such as a correlation of equal values, are not finite and are left out.
    finite = {name: value for name, value in scores.items() if math.isfinite(value)}
    task, kind, split, sha256 = names
    return Measured(task, kind, split, finite, sha256)


def new_card(kind: CardKind) -> str:
    """Return the card for a kind of model, without the model's name and scores."""
    return f"---\n{USE[kind]}"


def published_card(text: str, name: str, measured: Sequence[Measured]) -> str:
    """Return a card with the model's name on the hub in place of `FOLDER`, and its scores.

    The scores become a section `SCORES` at the end of the card, which replaces an older one. If
    there are no scores, the older section stays.
    """
    from huggingface_hub import EvalResult, ModelCard

    card = ModelCard(text.replace(FOLDER, name))
    if measured:
        card.data["model_name"] = name
        card.data["eval_results"] = [
            EvalResult(
                task_type=_TASKS.get(each.kind, "text-classification"),
                dataset_type=each.task,
                dataset_name=each.task,
                dataset_split=each.split,
                metric_type=metric,
                metric_value=value,
            )
            for each in measured
            for metric, value in each.scores.items()
        ]
        rest = re.sub(rf"(?ms)^{SCORES}\n.*?(?=^## |\Z)", "", card.text).rstrip()
        card.text = f"{rest}\n\n{section_of(measured)}"
    return str(card)


def section_of(measured: Sequence[Measured]) -> str:
    """Write the section `SCORES`; tasks that have the same metrics share one table."""
    tables: dict[tuple[str, ...], list[Measured]] = {}
    for each in measured:
        if each.scores:  # `read_scores` leaves out undefined scores, so none may be left
            tables.setdefault(tuple(each.scores), []).append(each)
    parts = [SCORES, "", "Measured with `sbert-search eval` on the weights of this model."]
    for metrics, rows in tables.items():
        parts += [
            "",
            f"| task | split | {' | '.join(metrics)} |",
            "|---" * (len(metrics) + 2) + "|",
        ]
        for each in rows:
            values = " | ".join(f"{each.scores[metric]:.4f}" for metric in metrics)
            parts.append(f"| {each.task} | {each.split} | {values} |")
    return "\n".join(parts) + "\n"


CARD = "README.md"


class PushOptions(TypedDict, total=False):
    """How to publish a model.

    Attributes:
        scores: Files with the output of ``sbert-search eval ... --json`` for this model, which
            become a table in the card and metadata of the hub.
        private: Whether a new repository is private; default: public, unless the settings of its
            owner, an organisation, say otherwise.
        token: Access token; default: that of ``hf auth login`` or of HF_TOKEN.
        message: Message of the commit; default: one that names this package.
    """

    scores: Sequence[str | Path]
    private: bool
    token: str | None
    message: str


def push_folder(
    folder: ModelFolder | None, name: str, kind: CardKind, **options: Unpack[PushOptions]
) -> str:
    """Publish a model folder in one commit; a repository that does not exist is created.

    None, for a model in memory, is an error. ``kind`` chooses a new card if the folder has none.
    The result is ``owner/model@commit``, by which the model can be opened. If the upload fails, no
    file is published, but a new repository may exist already.
    """
    if folder is None:
        raise ModelError("The model is in memory; save it to a folder and open that to publish it.")
    measured = read_scores(options.get("scores", ()))
    _require_same(measured, folder)
    files = _files(folder.path)
    if not any(file.endswith(".safetensors") for file in files):
        raise ModelError(f"{folder.path} holds no safetensors file, so it is not published.")
    readme = folder.path / CARD
    text = readme.read_text(encoding="utf-8") if readme.is_file() else new_card(kind)
    published = _upload(files, name, text, measured, options)
    note(f"published {folder.path} as {published}")
    return published


def _require_same(measured: Sequence[Measured], folder: ModelFolder) -> None:
    expected = folder.weights_sha256() if measured else ""
    for each in measured:
        if each.model_sha256 != expected:
            raise ConfigError(
                f"The scores on {each.task} were measured with other weights (sha256 "
                f"{each.model_sha256[:12]}) than those of {folder.path} ({expected[:12]}); measure "
                "this model."
            )


def _files(folder: Path) -> dict[str, Path]:
    """Return the files to publish, by name in the repository; logs, for example, are left out."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        wanted = any(fnmatch(name, pattern) for pattern in HUB_FILES)
        ignored = any(fnmatch(name, pattern) for pattern in IGNORED_FILES)
        if wanted and not ignored and path.is_file() and not f"/{name}".count("/."):
            found[name] = path
    return found


def _upload(
    files: dict[str, Path],
    name: str,
    card: str,
    measured: Sequence[Measured],
    options: PushOptions,
) -> str:
    from huggingface_hub import CommitOperationAdd, HfApi
    from huggingface_hub.errors import HFValidationError

    api = HfApi(token=options.get("token"), library_name="sbert-search")
    try:
        repo = api.create_repo(name, private=options.get("private"), exist_ok=True).repo_id
        readme = published_card(card, repo, measured).encode()
        contents: dict[str, bytes | Path] = {CARD: readme, **files}
        done = api.create_commit(
            repo,
            [CommitOperationAdd(path, content) for path, content in contents.items()],
            commit_message=options.get("message", "Publish with sbert-search"),
        )
    except HFValidationError as error:
        raise ModelError(f"{name!r} is no name of the hub; write owner/model.") from error
    except Exception as error:  # HTTP errors too, whose class depends on the hub library's version
        cause = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ else error
        reason = str(cause).strip().partition("\n")[0].rstrip(".")
        raise ModelError(
            f"{name} cannot be published: {reason}. Log in with `hf auth login`, or give a token "
            "with the right to write; nothing was published."
        ) from error
    return f"{repo}@{done.oid}"
