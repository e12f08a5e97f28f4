"""Sentence embeddings and semantic search: encode texts, and build and search indexes.

Each public name is imported from its module at the first use of the name. Importing the package
alone therefore loads neither torch nor FAISS.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from sbert_search.version import __version__ as __version__

if TYPE_CHECKING:  # for type checkers and editors; a test compares the names with _NAMES_IN
    from sbert_search.cluster import *  # noqa: F403
    from sbert_search.exchange import *  # noqa: F403
    from sbert_search.heads import *  # noqa: F403
    from sbert_search.lab import *  # noqa: F403
    from sbert_search.text.docstrings import stdlib_documents as stdlib_documents
    from sbert_search.text.fields import FieldNames as FieldNames
    from sbert_search.embed.arguments import ModelLike as ModelLike
    from sbert_search.embed.embedder import Embedder as Embedder
    from sbert_search.embed.protocol import TextEmbedder as TextEmbedder
    from sbert_search.errors import (
        CheckpointError as CheckpointError,
        ClusterError as ClusterError,
        CommitUnknown as CommitUnknown,
        ConfigError as ConfigError,
        CorpusError as CorpusError,
        CorruptIndex as CorruptIndex,
        EvaluationError as EvaluationError,
        ExchangeError as ExchangeError,
        IndexLocked as IndexLocked,
        IndexStoreError as IndexStoreError,
        LostShards as LostShards,
        ModelError as ModelError,
        ModelMismatch as ModelMismatch,
        NoLexicalData as NoLexicalData,
        NotAnIndex as NotAnIndex,
        QueryError as QueryError,
        SbertSearchError as SbertSearchError,
        TrainingError as TrainingError,
        UnfinishedBuild as UnfinishedBuild,
        WeightsError as WeightsError,
    )
    from sbert_search.index.documents import Page as Page
    from sbert_search.index.index import Index as Index
    from sbert_search.index.building.settings import BuildSettings as BuildSettings
    from sbert_search.index.building.ingest import IngestReport as IngestReport
    from sbert_search.index.building.settings import ReadSettings as ReadSettings
    from sbert_search.index.building.sync import SyncReport as SyncReport
    from sbert_search.index.settings import LexicalSettings as LexicalSettings
    from sbert_search.index.upkeep.check import CheckReport as CheckReport
    from sbert_search.index.upkeep.info import DriftReport as DriftReport
    from sbert_search.index.upkeep.info import IndexInfo as IndexInfo
    from sbert_search.index.settings import IndexSpec as IndexSpec
    from sbert_search.index.settings import TuneSettings as TuneSettings
    from sbert_search.index.building.migration import MigrationPlan as MigrationPlan
    from sbert_search.index.building.migration import MigrationReport as MigrationReport
    from sbert_search.index.storage.manifest import QueryModel as QueryModel
    from sbert_search.index.tuning.tune import TuneReport as TuneReport
    from sbert_search.records import (
        Document as Document,
        Hit as Hit,
        HitAnswer as HitAnswer,
        Query as Query,
        RowCounts as RowCounts,
        StageScore as StageScore,
    )
    from sbert_search.base.memory import set_memory_limit as set_memory_limit
    from sbert_search.base.progress import Progress as Progress
    from sbert_search.base.progress import ProgressCallback as ProgressCallback
    from sbert_search.base.progress import ProgressDisplay as ProgressDisplay
    from sbert_search.base.progress import set_progress as set_progress
    from sbert_search.search.engine import SearchEngine as SearchEngine
    from sbert_search.search.facets import Facet as Facet
    from sbert_search.search.facets import FacetRange as FacetRange
    from sbert_search.search.options import Boost as Boost
    from sbert_search.search.options import Fusion as Fusion
    from sbert_search.search.options import SearchOptions as SearchOptions
    from sbert_search.search.rerankers import Reranker as Reranker
    from sbert_search.search.results import Hits as Hits
    from sbert_search.train.bi_encoder import BiEncoderRecipe as BiEncoderRecipe
    from sbert_search.train.bi_encoder import train_bi_encoder as train_bi_encoder
    from sbert_search.train.cross_encoder import CrossEncoderRecipe as CrossEncoderRecipe
    from sbert_search.train.cross_encoder import train_cross_encoder as train_cross_encoder
    from sbert_search.train.fine_tune import FineTuned as FineTuned
    from sbert_search.train.fine_tune import fine_tune as fine_tune
    from sbert_search.train.pretrain import PretrainRecipe as PretrainRecipe
    from sbert_search.train.pretrain import pretrain as pretrain
    from sbert_search.train.recipe import load_recipe as load_recipe

_NAMES_IN = {
    "text.docstrings": ["stdlib_documents"],
    "text.fields": ["FieldNames"],
    "embed.arguments": ["ModelLike"],
    "embed.embedder": ["Embedder"],
    "embed.protocol": ["TextEmbedder"],
    "errors": [
        "CheckpointError",
        "ClusterError",
        "CommitUnknown",
        "ConfigError",
        "CorpusError",
        "CorruptIndex",
        "EvaluationError",
        "ExchangeError",
        "IndexLocked",
        "IndexStoreError",
        "LostShards",
        "ModelError",
        "ModelMismatch",
        "NoLexicalData",
        "NotAnIndex",
        "QueryError",
        "SbertSearchError",
        "TrainingError",
        "UnfinishedBuild",
        "WeightsError",
    ],
    "index.documents": ["Page"],
    "index.index": ["Index"],
    "index.building.ingest": ["IngestReport"],
    "index.building.settings": ["BuildSettings", "ReadSettings"],
    "index.building.sync": ["SyncReport"],
    "index.settings": ["LexicalSettings", "IndexSpec", "TuneSettings"],
    "index.upkeep.check": ["CheckReport"],
    "index.upkeep.info": ["DriftReport", "IndexInfo"],
    "index.building.migration": ["MigrationPlan", "MigrationReport"],
    "index.storage.manifest": ["QueryModel"],
    "index.tuning.tune": ["TuneReport"],
    "records": ["Document", "Hit", "HitAnswer", "Query", "RowCounts", "StageScore"],
    "base.memory": ["set_memory_limit"],
    "base.progress": ["Progress", "ProgressCallback", "ProgressDisplay", "set_progress"],
    "search.engine": ["SearchEngine"],
    "search.options": ["Boost", "Fusion", "SearchOptions"],
    "search.rerankers": ["Reranker"],
    "search.results": ["Hits"],
    "search.facets": ["Facet", "FacetRange"],
    "train.bi_encoder": ["BiEncoderRecipe", "train_bi_encoder"],
    "train.cross_encoder": ["CrossEncoderRecipe", "train_cross_encoder"],
    "train.fine_tune": ["FineTuned", "fine_tune"],
    "train.pretrain": ["PretrainRecipe", "pretrain"],
    "train.recipe": ["load_recipe"],
}
_MODULE_OF = {name: f"{__name__}.{module}" for module, names in _NAMES_IN.items() for name in names}


def _modules_of_names() -> dict[str, str]:
    """Return the module of each public name, also of those that the installed wings add."""
    from sbert_search.wings import installed  # takes as long as the rest of this module

    of_wings = (items for wing in installed().values() for items in wing.public.items())
    return _MODULE_OF | {name: module for module, names in of_wings for name in names}


if not TYPE_CHECKING:  # a type checker that sees __getattr__ accepts misspelt names

    def __getattr__(name: str) -> object:
        if name == "__all__":
            return sorted(_modules_of_names())
        dunder = name.startswith("__")  # asked for by importers and inspectors
        module = _MODULE_OF.get(name) or (None if dunder else _modules_of_names().get(name))
        if module is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(import_module(module), name)
        globals()[name] = value  # later uses find the value there and do not call __getattr__
        return value

    def __dir__() -> list[str]:
        return sorted({*globals(), *_modules_of_names()})
