"""Train task heads and predict with them: classes, entities in texts, answers to questions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sbert_search.wings import Command, Wing

if TYPE_CHECKING:
    from sbert_search.heads.predictor import Predictor as Predictor
    from sbert_search.heads.results import TextAnswer as TextAnswer
    from sbert_search.heads.results import TextEntities as TextEntities
    from sbert_search.heads.results import TextEntity as TextEntity
    from sbert_search.heads.results import TextLabel as TextLabel
    from sbert_search.heads.train_answerer import AnswerRecipe as AnswerRecipe
    from sbert_search.heads.train_answerer import train_answerer as train_answerer
    from sbert_search.heads.train_classifier import ClassifyRecipe as ClassifyRecipe
    from sbert_search.heads.train_classifier import train_classifier as train_classifier
    from sbert_search.heads.train_tagger import TagRecipe as TagRecipe
    from sbert_search.heads.train_tagger import train_tagger as train_tagger

WING = Wing(
    public={
        "sbert_search.heads.predictor": ["Predictor"],
        "sbert_search.heads.results": ["TextAnswer", "TextEntities", "TextEntity", "TextLabel"],
        "sbert_search.heads.train_answerer": ["AnswerRecipe", "train_answerer"],
        "sbert_search.heads.train_classifier": ["ClassifyRecipe", "train_classifier"],
        "sbert_search.heads.train_tagger": ["TagRecipe", "train_tagger"],
    },
    commands={
        "calibrate": Command(
            "sbert_search.heads.commands:calibrate",
            line="Fit the temperature of MODEL to the labelled texts of SOURCE.",
            examples=(
                "sbert-search calibrate run/model dev.jsonl",
                "sbert-search calibrate my-reranker judged-pairs.csv --json",
                "sbert-search calibrate run/model dev.jsonl --device cpu --quiet",
            ),
        ),
        "predict": Command(
            "sbert_search.heads.commands:predict",
            line="Predict with a task head for each row of SOURCE.",
            examples=(
                "sbert-search predict run/model reviews.jsonl",
                "sbert-search predict run/model a.csv --text-field body --out b.parquet",
                "cat questions.jsonl | sbert-search predict run/model - --json",
            ),
        ),
        "eval classify": Command(
            "sbert_search.heads.commands:classify",
            examples=(
                "sbert-search eval classify reviews.jsonl --model run/model",
                "sbert-search eval classify sst2 --data data --model run/model",
                "sbert-search eval classify pairs.csv --model run/model --json",
            ),
        ),
        "eval tag": Command(
            "sbert_search.heads.commands:tag",
            examples=(
                "sbert-search eval tag test.conll --model run/model",
                "sbert-search eval tag wnut17 --data data --model run/model",
                "sbert-search eval tag a.parquet --model run/model --json",
            ),
        ),
        "eval qa": Command(
            "sbert_search.heads.commands:qa",
            examples=(
                "sbert-search eval qa questions.json --model run/model",
                "sbert-search eval qa squad-dev-a --data data --model run/model",
                "sbert-search eval qa questions.jsonl --model run/model --json",
            ),
        ),
        "train classify": Command(
            "sbert_search.heads.commands:train_classify",
            examples=(
                "sbert-search train classify sst2 --help",
                "sbert-search train classify sst2 --set data.train=a.jsonl --out my-judge",
                "sbert-search train classify --resume my-judge",
            ),
        ),
        "train tag": Command(
            "sbert_search.heads.commands:train_tag",
            examples=(
                "sbert-search train tag wnut17 --help",
                "sbert-search train tag wnut17 --set data.train=a.conll --out my-tagger",
                "sbert-search train tag --resume my-model",
            ),
        ),
        "train qa": Command(
            "sbert_search.heads.commands:train_qa",
            examples=(
                "sbert-search train qa squad --help",
                "sbert-search train qa squad --set data.train=a.jsonl --out my-reader",
                "sbert-search train qa --resume my-model",
            ),
        ),
    },
    parts={
        "answerer": "sbert_search.heads.predictor:Predictor",
        "predicted columns": "sbert_search.heads.predicted:PredictedColumns",
    },
)
