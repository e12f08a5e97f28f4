"""The files of an analysis, and the HTML templates of pages that need no other file or network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape
from pathlib import Path

from sbert_search.base.files import replace_file


def write_files(out: str | Path, contents: Mapping[str, bytes]) -> list[Path]:
    """Write files by name into a folder, which is made if it does not exist; return their paths."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in contents.items():
        replace_file(folder / name, content)
    return [folder / name for name in contents]


def read_page_file(module: str, name: str) -> str:
    """Read a file of the folder ``page_files`` beside a module, given as its ``__file__``."""
    return (Path(module).with_name("page_files") / name).read_text(encoding="utf-8")


def embed_json(data: object) -> str:
    """Return data as JSON that cannot end the element of a page in which it stands."""
    return json.dumps(data).replace("<", "\\u003c")


def fill_page(
    template: str, *, title: str, style: str, script: str, data: Mapping[str, str]
) -> str:
    """Put title, style, script and data into a template, whose places are such as ``{{TITLE}}``.

    ``data`` is by place. At ``{{POLICY}}``, the content security policy of the page allows only its
    own style and script, by their hashes, so that no text in the data can run code and nothing is
    fetched.
    """
    parts = {
        "POLICY": f"default-src 'none'; style-src {hash_of(style)}; script-src {hash_of(script)}; "
        "base-uri 'none'; form-action 'none'",
        "TITLE": escape(title),
        "STYLE": style,
        "SCRIPT": script,
        **data,
    }
    page, *rest = template.split("{{")
    for part in rest:
        name, _, after = part.partition("}}")
        page += parts[name] + after
    return page


def hash_of(content: str) -> str:
    """Return the hash by which a content security policy allows an inline style or script."""
    digest = hashlib.sha256(content.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
