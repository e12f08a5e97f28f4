"""`eval classify`, `eval tag` and `eval qa`: measure task heads."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from sbert_search.cli.evaluate.reporting import EvalOptions, head_eval_options, report

if TYPE_CHECKING:
    from sbert_search.heads.predictor import Predictor


@click.command()
@head_eval_options
@click.pass_context
def classify(ctx: click.Context, /, **_: object) -> int:
    """Measure a classifier of texts or of pairs.

    The scores are accuracy, macro F1, Matthews correlation and the calibration error (ECE). If a
    text may have several classes, they are the F1 over all labels together (micro F1), the accuracy
    of the whole set and ECE; if the labels are numbers, the correlations of Spearman and Pearson.
    """
    from sbert_search.heads.evaluation import evaluate_classify

    options = EvalOptions.of(ctx)
    run = partial(
        evaluate_classify, predictor=_predictor(options), data=options.data, seed=options.seed
    )
    return report("classify", run, options)


@click.command()
@head_eval_options
@click.pass_context
def tag(ctx: click.Context, /, **_: object) -> int:
    """Measure a tagger of entities.

    The scores are precision, recall and F1 over entities, as CoNLL counts them.
    """
    from sbert_search.heads.evaluation import evaluate_tag

    options = EvalOptions.of(ctx)
    run = partial(evaluate_tag, predictor=_predictor(options), data=options.data, seed=options.seed)
    return report("tag", run, options)


@click.command()
@head_eval_options
@click.pass_context
def qa(ctx: click.Context, /, **_: object) -> int:
    """Measure a model that answers questions.

    The scores are SQuAD's exact match and F1.
    """
    from sbert_search.heads.evaluation import evaluate_qa

    options = EvalOptions.of(ctx)
    run = partial(evaluate_qa, predictor=_predictor(options), data=options.data, seed=options.seed)
    return report("qa", run, options)


def _predictor(options: EvalOptions) -> Predictor:
    from sbert_search.heads.predictor import Predictor

    if options.model is None:
        raise click.UsageError("Name a model with --model.")
    return Predictor(options.model, device=options.device, precision=options.precision)
