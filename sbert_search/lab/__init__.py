"""Analyses of models and indexes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbert_search.wings import Command, Wing

if TYPE_CHECKING:
    from sbert_search.lab.anisotropy.analyze import AnisotropyReport as AnisotropyReport
    from sbert_search.lab.anisotropy.analyze import analyze_anisotropy as analyze_anisotropy
    from sbert_search.lab.anisotropy.remedies import save_with_map as save_with_map
    from sbert_search.lab.attention.corpus import HeadReport as HeadReport
    from sbert_search.lab.attention.corpus import analyze_heads as analyze_heads
    from sbert_search.lab.attention.maps import AttentionMaps as AttentionMaps
    from sbert_search.lab.attention.maps import analyze_attention as analyze_attention
    from sbert_search.lab.errors.analyze import analyze_errors as analyze_errors
    from sbert_search.lab.errors.report import ErrorReport as ErrorReport
    from sbert_search.lab.errors.report import write_errors as write_errors
    from sbert_search.lab.map.making import map_index as map_index
    from sbert_search.lab.map.record import CorpusMap as CorpusMap
    from sbert_search.lab.map.saving import write_map as write_map
    from sbert_search.lab.map.settings import MapSettings as MapSettings
    from sbert_search.lab.variants.recipe import VariantsRecipe as VariantsRecipe
    from sbert_search.lab.variants.report import VariantsReport as VariantsReport
    from sbert_search.lab.variants.run import analyze_variants as analyze_variants

WING = Wing(
    public={
        "sbert_search.lab.anisotropy.analyze": ["analyze_anisotropy", "AnisotropyReport"],
        "sbert_search.lab.anisotropy.remedies": ["save_with_map"],
        "sbert_search.lab.errors.analyze": ["analyze_errors"],
        "sbert_search.lab.errors.report": ["ErrorReport", "write_errors"],
        "sbert_search.lab.variants.recipe": ["VariantsRecipe"],
        "sbert_search.lab.variants.run": ["analyze_variants"],
        "sbert_search.lab.variants.report": ["VariantsReport"],
        "sbert_search.lab.map.making": ["map_index"],
        "sbert_search.lab.map.record": ["CorpusMap"],
        "sbert_search.lab.map.saving": ["write_map"],
        "sbert_search.lab.map.settings": ["MapSettings"],
        "sbert_search.lab.attention.corpus": ["HeadReport", "analyze_heads"],
        "sbert_search.lab.attention.maps": ["AttentionMaps", "analyze_attention"],
    },
    commands={
        "analyze": Command("sbert_search.lab.commands:analyze", line="Analyze models and indexes."),
        "analyze anisotropy": Command(
            "sbert_search.lab.commands.models:anisotropy",
            examples=(
                "sbert-search analyze anisotropy my-model/model texts.txt",
                "sbert-search analyze anisotropy my-model a.txt --sts pairs.tsv --out runs",
                "sbert-search analyze anisotropy my-model a.txt --save-whitened whitened",
            ),
        ),
        "analyze attention": Command(
            "sbert_search.lab.commands.models:attention",
            examples=(
                'sbert-search analyze attention my-model "The cat sat." --out runs',
                'sbert-search analyze attention my-judge "a question" "its answer"',
                'sbert-search analyze attention my-model "A cat." --source a.txt',
            ),
        ),
        "analyze errors": Command(
            "sbert_search.lab.commands.results:errors",
            examples=(
                "sbert-search analyze errors runs/a --data data",
                "sbert-search analyze errors runs/a --out errors --worst 100",
                "sbert-search analyze errors runs/a --metric MRR@10 --json",
            ),
        ),
        "analyze map": Command(
            "sbert_search.lab.commands.results:map_",
            examples=(
                "sbert-search analyze map my.index --out map",
                "sbert-search analyze map my.index --out map --clusters 20 --parquet",
                'sbert-search analyze map my.index --out map --query "old mills"',
            ),
        ),
        "analyze variants": Command(
            "sbert_search.lab.commands.models:variants",
            examples=(
                "sbert-search analyze variants my.toml --out runs --plan",
                "sbert-search analyze variants my.toml --out runs --minutes 240",
                "sbert-search analyze variants my.toml --out runs --data my-data",
            ),
        ),
    },
)
