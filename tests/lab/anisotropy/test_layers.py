from collections import defaultdict
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

from sbert_search.errors import EvaluationError
from sbert_search.lab.anisotropy.layers import pass_texts
from sbert_search.models.bi_encoder import BiEncoder
from sbert_search.models.encoder.packed import PackedTokens
from sbert_search.models.heads import Dense, Normalize
from sbert_search.text.tokens.tokenizer import TextTokenizer
from tests.evaluate.metrics.test_isotropy import cosine
from tests.models.tiny import WORDS, tiny_bi_encoder, tiny_encoder

TEXTS = [
    " ".join(np.random.default_rng(n).choice(WORDS, 3 + n % 7)) + "!" * (n % 2) for n in range(40)
]
SPECIAL = {0, 1, 2, 3, 4}  # in the tiny vocabulary


def encoder(folder: Path, **settings: object) -> BiEncoder:
    model = tiny_bi_encoder(folder, **settings)
    with torch.no_grad():  # larger weights, so that words change with their context
        for parameter in model.encoder.parameters():
            parameter.mul_(8.0 if parameter.ndim > 1 else 1.0)
    return model


def states_of(model: BiEncoder, text: str) -> tuple[list[int], list[np.ndarray]]:
    """Ids and states of the words of one text, of each layer, computed alone."""
    ids = model.tokenizer.encode([text])[0][0]
    with torch.no_grad():
        output = model.encoder(PackedTokens.from_lists([ids]), output_layers=True)
    keep = [n for n, token in enumerate(ids) if token not in SPECIAL]
    return [ids[n] for n in keep], [states[keep].numpy() for states in output.layer_states]


@pytest.mark.thorough
def test_figures_equal_those_of_texts_computed_alone(tmp_path: Path) -> None:
    alone = [states_of(encoder(tmp_path), text) for text in TEXTS]
    passed = pass_texts(encoder(tmp_path), TEXTS)
    assert len(passed.layers) == 3
    for layer, figures in enumerate(passed.layers):
        every = np.concatenate([states[layer] for _, states in alone])
        tokens = np.mean([cosine(a, b) for a, b in combinations(every, 2)])
        assert figures.tokens == len(every)
        assert figures.token_cosine == pytest.approx(tokens, abs=1e-5)
        words = defaultdict(list)
        for ids, states in alone:
            for token in set(ids):
                words[token].append(states[layer][ids.index(token)])
        alike = [
            np.mean([cosine(a, b) for a, b in combinations(found, 2)])
            for found in words.values()
            if len(found) >= 5
        ]
        assert figures.self_similarity == pytest.approx(np.mean(alike), abs=1e-5)


def test_vectors_are_those_of_the_model(tmp_path: Path) -> None:
    head = [Dense(16, 6), Normalize()]
    model = encoder(tmp_path, pooling=("cls", "mean")[1:], head=head)
    with torch.no_grad():
        expected = model(PackedTokens.from_lists(model.tokenizer.encode(TEXTS)[0])).numpy()
    assert pass_texts(model, TEXTS).vectors == pytest.approx(expected, abs=1e-5)


def test_words_of_the_prompt_do_not_count(tmp_path: Path) -> None:
    plain = pass_texts(encoder(tmp_path), TEXTS)
    prompted = encoder(tmp_path, prompts={"p": "the red sun "}, default_prompt_name="p")
    assert pass_texts(prompted, TEXTS).layers[0].tokens == plain.layers[0].tokens
    assert not np.allclose(pass_texts(prompted, TEXTS).vectors, plain.vectors, atol=1e-3)


def test_texts_without_known_words_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EvaluationError, match="1 of 3 texts have tokens"):
        pass_texts(encoder(tmp_path), ["cat", "[SEP]", ""])


def test_the_same_seed_gives_the_same_figures(tmp_path: Path) -> None:
    first, again, other = (pass_texts(encoder(tmp_path), TEXTS, seed=s).layers for s in (1, 1, 2))
    assert first == again
    assert first != other


@pytest.mark.parametrize("prompt", ["", "query: ", "query:"])
def test_a_prompt_is_left_out_whatever_the_vocabulary(tmp_path: Path, prompt: str) -> None:
    words = ["cat", "sun", "mat", "dog", "red"]
    backend = Tokenizer(BPE())
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    trainer = BpeTrainer(
        special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator([f" {word}" for word in words] * 9 + ["query: cat"] * 9, trainer)
    backend.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    model = BiEncoder(
        tiny_encoder(vocab_size=backend.get_vocab_size()),
        TextTokenizer(backend, 16),
        prompts={"q": prompt},
        default_prompt_name="q" if prompt else None,
    )
    blank = "" if prompt.endswith(" ") else " "
    passed = pass_texts(model, [f"{blank}{word}" for word in words] * 4)
    assert passed.layers[0].tokens == 4 * len(words)
