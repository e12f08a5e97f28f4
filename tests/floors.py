"""The lowest versions that pyproject.toml allows, as constraints: ``python -m tests.floors``.

    python -m tests.floors > floors.txt
    pip install -c floors.txt -e ".[cpu,model,train]" pytest pytest-timeout hypothesis
    python -m pytest tests/index tests/search tests/embed tests/cli

With an argument, those of the frameworks:

    python -m tests.floors integrations > floors.txt
    pip install -c floors.txt -e ".[integrations]"
    python -m pytest -o filterwarnings=default tests/integrations

What only tests need is left out: parity is measured against current libraries.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
EXTRAS = ("cpu", "train")
FRAMEWORKS = ("langchain", "haystack", "llamaindex", "mteb")
_FLOOR = re.compile(r"([A-Za-z0-9_.-]+)>=([0-9.]+)")


def floors(project: Path = PROJECT, *, frameworks: bool = False) -> Iterator[str]:
    """Yield ``name==version`` of each requirement of this package, or of the adapters.

    Raises:
        ValueError: A requirement has no floor.
    """
    table = tomllib.loads(project.read_text("utf-8"))["project"]
    extras = FRAMEWORKS if frameworks else EXTRAS
    optional = (line for extra in extras for line in table["optional-dependencies"][extra])
    for requirement in (*([] if frameworks else table["dependencies"]), *optional):
        found = _FLOOR.match(requirement)
        if found is None:
            raise ValueError(f"{requirement!r} has no floor, as in 'numpy>=2.0'.")
        yield f"{found[1]}=={found[2]}"


if __name__ == "__main__":
    chosen = floors(frameworks="integrations" in sys.argv[1:])
    sys.stdout.writelines(f"{line}\n" for line in chosen)
