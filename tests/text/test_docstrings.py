"""The demo's corpus: docstrings of the standard library, parsed and never imported."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from sbert_search.errors import CorpusError
from sbert_search.text.docstrings import MAX_CHARS, MIN_WORDS, stdlib_documents

MODULE = '''"""A module that prints when it is imported."""
raise SystemExit("imported")
if True:
    def twice():
        """The first definition of a name that has two."""
        def inside():
            """Nobody can call this function from outside."""
else:
    def twice():
        """The second definition of a name that has two."""
try:
    with Context():
        def within():
            """A function that is defined in a with statement."""
except ImportError:
    def fallback():
        """A function that is defined if an import fails."""
class Thing:
    """A thing that tests like to have around."""
    async def wait(self):
        """Wait until the thing is there at last."""
    def short(self):
        """Too few words."""
    def _private(self):
        """A private method that nobody should read."""
'''


def test_definitions_of_a_module(tmp_path: Path) -> None:
    package = tmp_path / "pkg"
    (package / "tests").mkdir(parents=True)
    (package / "__init__.py").write_text('"""A package with a module inside it."""')
    (package / "mod.py").write_text(MODULE)
    (package / "tests" / "mod.py").write_text(MODULE)
    (package / "_hidden.py").write_text(MODULE)
    (package / "_internal").mkdir()
    (package / "_internal" / "mod.py").write_text(MODULE)
    (package / "template.py").write_text("no python at all {{")
    documents = list(stdlib_documents(tmp_path))
    assert [(document.doc_id, document.metadata["kind"]) for document in documents] == [
        ("pkg", "module"),
        ("pkg.mod", "module"),
        ("pkg.mod.twice", "function"),
        ("pkg.mod.within", "function"),
        ("pkg.mod.fallback", "function"),
        ("pkg.mod.Thing", "class"),
        ("pkg.mod.Thing.wait", "method"),
    ]
    assert documents[2].text == "The first definition of a name that has two."
    assert documents[2].metadata["line"] == 4
    assert documents[2].source.endswith("mod.py:4")


def test_long_docstrings_keep_whole_paragraphs(tmp_path: Path) -> None:
    paragraph = "word " * 120
    (tmp_path / "long.py").write_text(f'"""{paragraph}\n\n{paragraph}\n"""')
    (document,) = stdlib_documents(tmp_path)
    assert document.text == paragraph.strip()


def test_a_docstring_is_cut_at_exactly_1000_characters(tmp_path: Path) -> None:
    whole, long = "word " * 199 + "words", "x" * MAX_CHARS
    (tmp_path / "a.py").write_text(f'"""{whole}\n\n{long}\n"""')  # `whole` has 1,000 characters
    (tmp_path / "b.py").write_text(f'"""{whole}s\n\n{long}\n"""')
    (tmp_path / "c.py").write_text(f'"""Two words.\n\n{whole} {long}\n"""')
    texts = [document.text for document in stdlib_documents(tmp_path)]
    assert texts == [whole, whole, f"Two words.\n\n{whole}"[:MAX_CHARS].rstrip()]


@pytest.mark.thorough
def test_the_library_of_this_python() -> None:
    documents = list(stdlib_documents())
    assert "turtle" not in sys.modules
    by_id = {document.doc_id: document for document in documents}
    assert len(by_id) == len(documents)
    assert 2_000 < len(documents) < 10_000
    assert by_id["textwrap.wrap"].text.startswith("Wrap a single paragraph of text")
    assert "turtle" in by_id
    assert by_id["json"].metadata["kind"] == "module"
    assert all(len(document.text) <= MAX_CHARS for document in documents)
    assert all(len(document.text.split()) >= MIN_WORDS for document in documents)
    assert documents == list(stdlib_documents())


def test_a_folder_without_source_is_named(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match="holds no Python source"):
        list(stdlib_documents(tmp_path))
