"""Measure how good models, search engines and runs are on data with known answers.

Each public name is imported from its module at its first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sbert_search.evaluate.comparison import Comparison as Comparison
    from sbert_search.evaluate.comparison import compare as compare
    from sbert_search.evaluate.judged import SearchAgreement as SearchAgreement
    from sbert_search.evaluate.judged import compare_searches as compare_searches
    from sbert_search.evaluate.judged import evaluate as evaluate
    from sbert_search.evaluate.judged import evaluate_run as evaluate_run
    from sbert_search.evaluate.manifest import Evaluation as Evaluation

_MODULE_OF = {
    "Comparison": "comparison",
    "Evaluation": "manifest",
    "SearchAgreement": "judged",
    "compare": "comparison",
    "compare_searches": "judged",
    "evaluate": "judged",
    "evaluate_run": "judged",
}

if not TYPE_CHECKING:  # a type checker that sees __getattr__ accepts misspelt names

    def __getattr__(name: str) -> object:
        if name not in _MODULE_OF:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)
