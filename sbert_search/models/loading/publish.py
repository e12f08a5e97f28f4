"""Publish the folder of a model on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TypedDict, Unpack

from sbert_search.base.progress import note
from sbert_search.errors import ConfigError, ModelError
from sbert_search.models.loading.card import (
    CardKind,
    Measured,
    new_card,
    published_card,
    read_scores,
)
from sbert_search.models.loading.folder import ModelFolder
from sbert_search.models.loading.resolve import HUB_FILES, IGNORED_FILES

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

    Args:
        folder: The folder; None: the model is in memory, which is an error.
        name: Name on the hub, ``owner/model``.
        kind: Kind of the model, for a new card if the folder has none.
        options: Scores, visibility, token and message.

    Returns:
        The name with the commit, ``owner/model@commit``, by which the model can be opened.

    Raises:
        ConfigError: The scores cannot be read, or were measured with other weights.
        ModelError: The model has no folder or no safetensors file, the hub does not allow such a
            name, or the hub cannot be reached or refuses the upload. No file is published then; a
            new repository may exist already.
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
    """Refuse scores that were measured with other weights than those of the folder."""
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
