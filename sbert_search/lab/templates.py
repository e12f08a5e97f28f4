"""Fill the HTML template of a page that needs no other file and no network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from html import escape


def fill_page(
    template: str, *, title: str, style: str, script: str, data: Mapping[str, object]
) -> str:
    """Put title, style, data (as JSON) and script into a template.

    The places of the template are ``{{POLICY}}``, ``{{TITLE}}``, ``{{STYLE}}``, ``{{DATA}}`` and
    ``{{SCRIPT}}``. The content security policy of the page allows only its own style and script, by
    their hashes, so that no text in the data can run code and nothing is fetched.
    """
    parts = {
        "POLICY": f"default-src 'none'; style-src {hash_of(style)}; script-src {hash_of(script)}; "
        "base-uri 'none'; form-action 'none'",
        "TITLE": escape(title),
        "STYLE": style,
        "DATA": json.dumps(data).replace("<", "\\u003c"),  # no text can close the element
        "SCRIPT": script,
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
