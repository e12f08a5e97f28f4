"""Stands for the client of OpenAI where it is not installed: sends the request that it sends.

`tests/serve/routes/clients.json` has that request, recorded from the client itself.
"""

from __future__ import annotations

import base64
import json
from array import array
from types import SimpleNamespace
from urllib.request import Request, urlopen


class OpenAI:
    """Stands in for the embeddings resource of OpenAI's client."""

    def __init__(self, base_url: str, api_key: str) -> None:
        self.base_url, self.api_key = base_url, api_key
        self.embeddings = SimpleNamespace(create=self._create)

    def _create(self, *, model: str, input: list[str]) -> SimpleNamespace:
        body = {"input": input, "model": model, "encoding_format": "base64"}
        headers = {"authorization": f"Bearer {self.api_key}", "content-type": "application/json"}
        url = f"{self.base_url}/embeddings"
        with urlopen(Request(url, json.dumps(body).encode(), headers)) as answer:
            found = json.load(answer)["data"]
        decoded = [array("f", base64.b64decode(one["embedding"])).tolist() for one in found]
        return SimpleNamespace(data=[SimpleNamespace(embedding=vector) for vector in decoded])
