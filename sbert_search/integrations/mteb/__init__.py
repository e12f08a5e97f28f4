"""MTEB: an embedder, a cross-encoder or a search engine as a model, and BEIR folders as tasks."""

from sbert_search.integrations.requirements import extra

with extra("mteb"):
    from sbert_search.integrations.mteb.models import (
        SbertSearchCrossEncoder,
        SbertSearchEncoder,
        SbertSearchModel,
    )
    from sbert_search.integrations.mteb.tasks import FolderTask

__all__ = ["FolderTask", "SbertSearchCrossEncoder", "SbertSearchEncoder", "SbertSearchModel"]
