"""Predictions of tiny heads, compared with transformers and with windows worked out one by one."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from sbert_search.errors import ConfigError, CorpusError, ModelError
from sbert_search.heads.engine import Head
from sbert_search.heads.predictor import Predictor
from sbert_search.heads.results import TextEntities, TextLabel
from sbert_search.heads.windows import (
    AskedText,
    TaggingText,
    Window,
    best_answer,
    encode_parts,
    encode_windows,
    entities_of,
    words_of,
)
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.sequence_classifier import SequenceClassifier
from sbert_search.models.side_file import Pooling, SideFile
from sbert_search.models.token_classifier import QuestionAnswerer
from tests.models.tiny import (
    FAMILIES,
    PAIRS,
    TEXTS,
    tiny_answerer,
    tiny_bi_encoder,
    tiny_classifier,
    tiny_encoder,
    tiny_tagger,
    tiny_tokenizer,
)
from tests.parity.folders import bare

pytestmark = pytest.mark.usefixtures("one_thread")

LONG = "the cat sat on the mat and then a dog ran far away in the red sun. " * 6


def test_classes_equal_those_of_transformers(tmp_path: Path) -> None:
    tiny_classifier(tmp_path / "tokens").save(tmp_path / "saved")
    predictor = Predictor(tmp_path / "saved", device="cpu", precision="fp32")
    found = predictor.classify
    assert (predictor.task, predictor.labels) == ("classify", ("no", "maybe", "yes"))
    reference = AutoModelForSequenceClassification.from_pretrained(tmp_path / "saved").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "saved")
    for text, own in zip([*TEXTS, *PAIRS], [*found(TEXTS), *found(PAIRS)], strict=True):
        given = (text,) if isinstance(text, str) else text
        with torch.inference_mode():
            batch = tokenizer(*([part] for part in given), truncation=True, return_tensors="pt")
            chances = reference(**batch).logits.softmax(-1)[0].tolist()
        theirs = {reference.config.id2label[n]: chance for n, chance in enumerate(chances)}
        assert own.scores == pytest.approx(theirs, abs=1e-5)
        assert own.label == max(theirs, key=theirs.__getitem__)
        assert own.to_row() == {"label": own.label, "score": own.score}
    assert len({label.label for label in [*found(TEXTS), *found(PAIRS)]}) > 1


@pytest.mark.parametrize("unit_length", [False, True])
@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_pooling_of_every_family_in_bf16(
    tmp_path: Path, family: str, pooling: Pooling, unit_length: bool
) -> None:
    encoder = tiny_encoder(initializer_range=0.3, **FAMILIES[family])
    side = SideFile(pooling=pooling, unit_length=unit_length)
    model = SequenceClassifier(encoder, tiny_tokenizer(tmp_path), labels=("no", "yes"), side=side)
    model.save(tmp_path / "saved")
    exact, rounded = (
        Predictor(tmp_path / "saved", device="cpu", precision=precision).logits(TEXTS)
        for precision in ("fp32", "bf16")
    )
    np.testing.assert_allclose(rounded, exact, atol=0.05 * np.abs(exact).max())


def test_temperature_threshold_and_kinds(tmp_path: Path) -> None:
    plain = tiny_classifier(tmp_path / "a")
    logits = Predictor(plain).logits(TEXTS)
    plain.temperature = 2.5
    warm = Predictor(plain).classify(TEXTS)
    powers = np.exp(logits / 2.5)
    expected = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose([[*t.scores.values()] for t in warm], expected, atol=1e-6)

    several = tiny_classifier(tmp_path / "b", kind="several", threshold=0.4)
    for text, row in zip(Predictor(several).classify(TEXTS), logits, strict=True):
        chances = dict(zip(several.labels, 1 / (1 + np.exp(-row)), strict=True))
        assert text.scores == pytest.approx(chances, abs=1e-6)
        assert set(text.labels) == {name for name, chance in chances.items() if chance >= 0.4}
        assert text.score == max(text.scores.values())
    number = tiny_classifier(tmp_path / "c", kind="number", labels=("score",))
    (value,) = Predictor(number).classify(["cat"])
    assert value == TextLabel("score", value.score, ("score",), {"score": value.score})
    assert value.score == pytest.approx(float(Predictor(number).logits(["cat"])[0, 0]))


def test_a_batch_of_no_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="batch_tokens is 0; it must be at least 1"):
        Predictor(tmp_path, batch_tokens=0)


def test_order_and_batches_do_not_change_predictions(tmp_path: Path) -> None:
    model = tiny_classifier(tmp_path)
    whole = Predictor(model).logits(TEXTS * 3)
    small = Predictor(model, batch_tokens=8).logits(TEXTS * 3)
    np.testing.assert_allclose(whole, small, atol=1e-5)
    texts = ["A cat.", LONG, "", "the dog ran far away"]
    tags = Predictor(tiny_tagger(tmp_path), batch_tokens=30)
    alone = [tags.tag([text])[0] for text in texts]
    for own, other in zip(tags.tag(texts), alone, strict=True):
        assert [(e.label, e.start, e.end) for e in own.entities] == [
            (e.label, e.start, e.end) for e in other.entities
        ]


def test_entities_have_characters_of_the_original_text(tmp_path: Path) -> None:
    predictor = Predictor(tiny_tagger(tmp_path))
    text = "  Cats, the DOG é\n@sun_set ran."
    words = ["Cats", ",", "the", "DOG", "é", "@sun_set", "ran", "."]
    tags = predictor.tag_words([words])[0]
    (found,) = predictor.tag([text])
    assert found.entities
    assert all(text[e.start : e.end] == e.text for e in found.entities)
    assert all(0 < e.score <= 1 for e in found.entities)
    # Words are the same tokens whether a text or its words are given.
    every = Predictor(tiny_tagger(tmp_path, ("N", "V", "P"))).tag([text])[0]
    assert [entity.text for entity in every.entities] == words
    starts = [tag for tag in tags if tag.startswith("B")]
    assert len(found.entities) >= len(starts)
    (row,) = predictor.predict([text])
    first = found.entities[0]
    shown = {"label": first.label, "start": first.start, "end": first.end, "text": first.text}
    assert str(row.to_row()).startswith(str({"entities": [shown | {"score": first.score}]})[:-2])


def test_every_word_of_a_long_text_is_tagged(tmp_path: Path) -> None:
    model = tiny_tagger(tmp_path, ("N", "V", "P"))  # no tags of entities: a result for every word
    predictor = Predictor(model)
    (found,) = predictor.tag([LONG])
    assert [entity.text for entity in found.entities] == LONG.replace(".", " .").split()
    assert len({entity.label for entity in found.entities}) > 1
    hidden = "cat \u0001 \u0002 dog \u0001"  # the tokenizer makes no tokens of control characters
    assert next(entity.text for entity in predictor.tag([hidden])[0].entities) == "cat"
    lost = 600 * "\u0001 " + "cat"  # more words without tokens than the model reads at once
    assert [entity.text for entity in predictor.tag([lost])[0].entities][-1] == "cat"
    assert predictor.tag(["", " \n"]) == [TextEntities(()), TextEntities(())]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Zu\u0308rich, n\u0303o", ["Zu\u0308rich", ",", "n\u0303o"]),  # decomposed letters
        ("Do\u00adnau", ["Do\u00adnau"]),
        ("\u0939\u093f\u0928\u094d\u0926\u0940", ["\u0939\u093f\u0928\u094d\u0926\u0940"]),  # Hindi
        ("a \u0301 b\u200e", ["a", "b\u200e"]),  # a mark alone is no word
        ("a\u200bb", ["a", "b"]),
        (
            "rock\u0301'n'roll @no\u0308 \u2764\ufe0f!",
            ["rock\u0301'n'roll", "@no\u0308", "\u2764\ufe0f", "!"],
        ),
    ],
)
def test_words_go_on_over_marks(text: str, words: list[str]) -> None:
    assert [text[start:end] for start, end in words_of(text)] == words


def brute_force(model: QuestionAnswerer, question: str, text: str) -> tuple[float, float, int, int]:
    """Best span and score of "no answer", window by window and pair of tokens by pair."""
    best, null, side = (-np.inf, 0, 0), np.inf, model.side
    for window in encode_windows(
        model.tokenizer, question, text, overlap=side.overlap, max_question=side.max_question
    ):
        types = [window.types] if model.gets_segment_ids else None
        with torch.inference_mode():
            logits = model.eval()(PackedTokens.from_lists([window.ids], types)).numpy()
        null = min(null, float(logits[0].sum()))
        for a, (start, _) in enumerate(window.offsets):
            for b, (_, end) in enumerate(window.offsets[a : a + side.max_answer], start=a):
                score = float(logits[window.start + a, 0] + logits[window.start + b, 1])
                best = max(best, (score, -start, -end))
    return best[0], null, -best[1], -best[2]


@pytest.mark.parametrize("text", ["the cat sat on the mat", LONG])
@pytest.mark.parametrize("question", ["the dog", "a cat ran?"])
def test_answers_are_the_best_span_of_all_windows(tmp_path: Path, question: str, text: str) -> None:
    model = tiny_answerer(tmp_path)
    score, null, start, end = brute_force(model, question, text)
    (found,) = Predictor(model, no_answer_threshold=np.inf).answer([(question, text)])
    assert (found.start, found.end) == (start, end)
    assert found.text == text[start:end] != ""
    assert found.margin == pytest.approx(score - null, abs=1e-4)
    assert 0 < found.score < 1
    (refused,) = Predictor(model, no_answer_threshold=-np.inf).answer([(question, text)])
    assert (refused.text, refused.start, refused.end) == ("", 0, 0)
    stored = tiny_answerer(tmp_path, SideFile(no_answer_threshold=-found.margin + 0.01))
    assert Predictor(stored).answer([(question, text)])[0].text == found.text
    stored.no_answer_threshold -= 0.02
    assert Predictor(stored).answer([(question, text)])[0].text == ""


@pytest.mark.parametrize("threshold", [np.nan, "0.5"])
def test_a_threshold_that_no_score_reaches_is_refused(tmp_path: Path, threshold: Any) -> None:
    with pytest.raises(ConfigError, match=r"no_answer_threshold is .*; it must be a number"):
        Predictor(tiny_answerer(tmp_path), no_answer_threshold=threshold)


def test_two_classes_of_one_name_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="two classes have the name 'no' in id2label"):
        Predictor(tiny_classifier(tmp_path, labels=("no", "yes", "no")))


def test_windows_and_answers_have_the_sizes_of_the_model(tmp_path: Path) -> None:
    sides = [SideFile(), SideFile(overlap=2, max_question=1, max_answer=1)]
    found = []
    for n, side in enumerate(sides):
        tiny_answerer(tmp_path / "tokens", side).save(tmp_path / str(n))
        model = QuestionAnswerer.load(tmp_path / str(n))
        assert model.side == side
        score, null, start, end = brute_force(model, "the red dog", LONG)
        predictor = Predictor(model, no_answer_threshold=np.inf)
        (answer,) = predictor.answer([("the red dog", LONG)])
        assert (answer.start, answer.end) == (start, end)
        assert answer.margin == pytest.approx(score - null, abs=1e-4)
        found.append(answer)
    (short,) = predictor.answer([("the red dog", LONG)], max_answer_tokens=1)
    assert short == found[1]
    assert found[0] != found[1]


def test_an_answer_has_no_blank_at_its_ends(tmp_path: Path) -> None:
    model, text = tiny_answerer(tmp_path), "the cat sat"
    window = Window([], [], 1, [(0, 3), (3, 8), (8, 11)])  # a token contains the blanks beside it
    logits = np.array([[0, 0], [0, 0], [9, 9], [0, 0]], dtype=np.float32)
    found = best_answer(model, AskedText(text, [window], {0: logits}), max_tokens=3, threshold=0)
    assert (found.text, found.start, found.end) == ("cat", 4, 7)


def test_a_blank_span_is_no_answer(tmp_path: Path) -> None:
    window = Window([], [], 1, [(0, 3), (3, 5), (5, 8)])
    logits = np.array([[0, 0], [0, 0], [9, 9], [0, 0]], dtype=np.float32)
    asked = AskedText("the  cat", [window], {0: logits})
    found = best_answer(tiny_answerer(tmp_path), asked, max_tokens=3, threshold=0)
    assert (found.text, found.start, found.end) == ("", 0, 0)


def test_the_score_of_an_answer_is_the_chance_of_its_ends_at_the_temperature(
    tmp_path: Path,
) -> None:
    model, text = tiny_answerer(tmp_path, SideFile(temperature=2.0)), "the cat sat"
    window = Window([], [], 1, [(0, 3), (4, 7), (8, 11)])
    logits = np.array([[0, 0], [1, 0], [0, 2], [0, 0]], dtype=np.float32)
    found = best_answer(model, AskedText(text, [window], {0: logits}), max_tokens=3, threshold=0)
    first, last = np.exp(1 / 2), np.exp(2 / 2)  # beside two other tokens and no answer, with 0 each
    assert found.text == "the cat"
    assert found.score == pytest.approx(first / (first + 3) * last / (last + 3))


def test_a_token_in_two_windows_counts_once_in_the_score(tmp_path: Path) -> None:
    model, text = tiny_answerer(tmp_path), "a b c d"
    offsets = [(0, 1), (2, 3), (4, 5), (6, 7)]
    logits = np.array([[0, 0], [0, 0], [0, 0], [3, 4], [0, 0]], dtype=np.float32)
    whole = AskedText(text, [Window([], [], 1, offsets)], {0: logits})
    windows = [Window([], [], 1, offsets[:3]), Window([], [], 1, offsets[1:], 1)]
    parts = AskedText(text, windows, {0: logits[:4], 1: logits[[0, 2, 3, 4]]})
    found = [best_answer(model, one, max_tokens=3, threshold=0) for one in (whole, parts)]
    assert found[0] == found[1]
    assert found[0].text == "c"
    assert found[0].score == pytest.approx(np.exp(7) / (np.exp(3) + 4) / (np.exp(4) + 4))


def test_an_entity_goes_on_behind_a_word_without_a_token(tmp_path: Path) -> None:
    model = tiny_tagger(tmp_path)
    text = "the cat \ufffd dog sat"
    tagging = TaggingText(text, words_of(text), len(model.labels))
    ((known,), _) = encode_parts(model, [tagging])[1:]
    for word, tag in zip(known, ("O", "B-per", "I-per", "O"), strict=True):
        tagging.logits[word, model.labels.index(tag)], tagging.known[word] = 9, True
    assert [one.text for one in entities_of(model, tagging).entities] == ["cat \ufffd dog"]


def test_a_higher_temperature_makes_answers_less_sure_and_no_other(tmp_path: Path) -> None:
    cold, warm = tiny_answerer(tmp_path), tiny_answerer(tmp_path, SideFile(temperature=4.0))
    asked = [("the dog", LONG), ("cat", "the red sun"), ("cat", " ")]
    for a, b in zip(Predictor(cold).answer(asked), Predictor(warm).answer(asked), strict=True):
        assert (a.text, a.margin) == (b.text, b.margin)
        assert b.score < a.score or a.score == 1


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("make", [tiny_classifier, tiny_tagger, tiny_answerer])
def test_logits_that_are_not_finite_are_refused(
    tmp_path: Path, make: Callable[[Path], Head], value: float
) -> None:
    model = make(tmp_path)
    texts = [("the dog", LONG)] if make is tiny_answerer else ["the dog"]
    with torch.no_grad():
        list(model.parameters())[-1][0] = value  # the bias of the head
    with pytest.raises(ModelError, match=r"not finite \(NaN or infinite\)"):
        Predictor(model).predict(texts)


def test_models_are_used_for_their_task_only(tmp_path: Path) -> None:
    model = tiny_tagger(tmp_path)
    predictor = Predictor(model)
    with pytest.raises(ConfigError, match="tags single texts"):
        predictor.predict([("a", "b")])
    with pytest.raises(ConfigError, match="does not answer questions"):
        predictor.answer([("a", "b")])
    with pytest.raises(ConfigError, match="give pairs of a question and a text"):
        Predictor(tiny_answerer(tmp_path)).predict(["a"])
    with pytest.raises(ConfigError, match="does not tag words"):
        Predictor(tiny_classifier(tmp_path)).tag(["a"])
    tiny_bi_encoder(tmp_path / "tokens").save(tmp_path / "bi")
    with pytest.raises(ModelError, match="is no task head: its architecture BertModel"):
        Predictor(tmp_path / "bi", device="cpu")


def test_an_empty_list_and_a_copy_made_as_pickle_does(tmp_path: Path) -> None:
    for make in (tiny_classifier, tiny_tagger, tiny_answerer):
        make(tmp_path / "tokens").save(tmp_path / make.__name__)
        predictor = Predictor(tmp_path / make.__name__, device="cpu")
        assert list(predictor.predict([])) == []
        again = copy.copy(predictor)  # as unpickling in another process
        assert again.identity == predictor.identity
        assert again.identity.pooling == predictor.task


def test_a_generator_is_read_once(tmp_path: Path) -> None:
    texts, pairs = ["the cat", "a dog"], [("the cat", "the cat sat"), ("a dog", "a dog ran")]
    classes, tags = Predictor(tiny_classifier(tmp_path)), Predictor(tiny_tagger(tmp_path))
    answers = Predictor(tiny_answerer(tmp_path))
    calls: list[tuple[Callable[[Any], Any], list[Any]]] = [
        (classes.predict, texts),
        (classes.classify, pairs),
        (tags.predict, texts),
        (tags.tag, texts),
        (answers.predict, pairs),
        (answers.answer, pairs),
    ]
    for predict, given in calls:
        assert predict(iter(given)) == predict(given)
        assert len(predict(given)) == 2
    words = [text.split() for text in texts]
    assert tags.tag_words(map(iter, words)) == tags.tag_words(words)  # type: ignore[arg-type]


@pytest.mark.parametrize("texts", [{"the cat": 1}, b"the cat", 7, None, [None], [3]])
def test_what_is_no_list_of_texts_is_refused(tmp_path: Path, texts: Any) -> None:
    classes, tags = Predictor(tiny_classifier(tmp_path)), Predictor(tiny_tagger(tmp_path))
    for predict in (classes.classify, tags.tag, Predictor(tiny_answerer(tmp_path)).answer):
        with pytest.raises(CorpusError, match=r"pass|no text"):
            predict(texts)
    with pytest.raises(CorpusError, match="pass a list of words"):
        tags.tag_words([["the", texts]])


def test_one_text_is_not_read_as_a_list_of_characters(tmp_path: Path) -> None:
    one = "are one string, 'the cat'; pass a list of texts"
    classes, tags = Predictor(tiny_classifier(tmp_path)), Predictor(tiny_tagger(tmp_path))
    for predict in (classes.predict, classes.classify, classes.logits, tags.predict, tags.tag):
        with pytest.raises(CorpusError, match=one):
            predict("the cat")
    for sentences in ("the cat", ["the cat"]):
        with pytest.raises(CorpusError, match="The sentence 'the cat' is a text; pass a list of w"):
            tags.tag_words(sentences)
    answers = Predictor(tiny_answerer(tmp_path))
    with pytest.raises(CorpusError, match="one string, 'the cat'; pass a list of pairs of a quest"):
        answers.answer("the cat")  # type: ignore[arg-type]
    with pytest.raises(
        CorpusError, match="'the cat' is no question with a text to answer from; pass"
    ):
        answers.answer(("the cat", "the cat sat"))  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("changes", [{"pooler_hidden_act": "relu"}, {"embedding_size": 8}])
def test_a_deberta_that_we_cannot_compute_is_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    folder = bare(tmp_path, "deberta", "ForSequenceClassification", num_labels=3, **changes)
    with pytest.raises(ModelError, match=f"{next(iter(changes))} is .* native encoder"):
        Predictor(folder, device="cpu")
