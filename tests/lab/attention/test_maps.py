import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel

from sbert_search.errors import ConfigError, ModelError
from sbert_search.lab.attention.maps import PAGE_NUMBERS, AttentionMaps, analyze_attention
from sbert_search.models.loading.folder import load_tokenizer, read_folder
from tests.models.tiny import tiny_bi_encoder
from tests.parity.folders import bare, edit

NATIVE = ("bert", "roberta", "albert", "distilbert", "electra", "deberta")
TEXT, SECOND = "The cat sat on the mat.", "a dog ran far away"


@pytest.mark.parametrize("family", NATIVE)
@pytest.mark.parametrize("second", [None, SECOND])
def test_probabilities_equal_those_of_transformers(
    family: str, second: str | None, tmp_path: Path
) -> None:
    folder = bare(tmp_path / "model", family)
    maps = analyze_attention(folder, TEXT, second)
    assert maps.probabilities.sum(-1) == pytest.approx(np.ones(maps.probabilities.shape[:3]))
    tokenizer = load_tokenizer(read_folder(folder))
    if second is None:
        inputs = {"input_ids": torch.tensor(tokenizer.encode([TEXT])[0])}
    else:
        pair = tokenizer.encode_pairs([(TEXT, second)])
        inputs = {"input_ids": torch.tensor(pair.ids)}
        if family not in ("roberta", "distilbert", "deberta"):  # they have no segments
            inputs["token_type_ids"] = torch.tensor(pair.types)
    reference = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    with torch.no_grad():
        theirs = reference(**inputs, output_attentions=True).attentions
    expected = torch.cat(theirs).numpy()
    assert maps.probabilities == pytest.approx(expected, abs=1e-5)
    assert len(maps.tokens) == maps.probabilities.shape[-1] == inputs["input_ids"].shape[1]
    assert len(maps.heads) == expected.shape[0] * expected.shape[1]


@pytest.mark.parametrize("family", NATIVE)
def test_tokens_of_a_pair_know_their_text(family: str, tmp_path: Path) -> None:
    maps = analyze_attention(bare(tmp_path / "model", family), "cat sat", "dog")
    words = [
        "".join(
            token.removeprefix("##").replace("␣", "")
            for token, segment, special in zip(
                maps.tokens, maps.segments, maps.special, strict=True
            )
            if segment == number and not special
        )
        for number in (0, 1)
    ]
    assert words == ["catsat", "dog"]
    assert maps.special[0]
    assert maps.special[-1]


@pytest.fixture(scope="module")
def maps(tmp_path_factory: pytest.TempPathFactory) -> AttentionMaps:
    folder = tmp_path_factory.mktemp("model")
    tiny_bi_encoder(folder / "tokens").save(folder / "bi")
    return analyze_attention(folder / "bi", TEXT, "a <b> dog")


def test_the_files_hold_everything(maps: AttentionMaps, tmp_path: Path) -> None:
    paths = maps.write(tmp_path / "deep" / "out")
    names = ["attention.npz", "attention.json", "attention.html"]
    assert [path.name for path in paths] == names
    arrays = np.load(paths[0], allow_pickle=False)
    assert np.array_equal(arrays["probabilities"], maps.probabilities)
    assert tuple(arrays["tokens"]) == maps.tokens
    record = json.loads(paths[1].read_text())
    assert record["tokens"] == list(maps.tokens)
    assert record["heads"][3] == {
        **{"layer": 2, "head": 2},
        **{name: getattr(maps.heads[3], name) for name in ("entropy", "distance")},
        **{name: record["heads"][3][name] for name in ("first", "separator", "diagonal")},
        **{name: record["heads"][3][name] for name in ("previous", "next")},
    }


def test_a_page_that_no_browser_could_show_is_left_out(
    maps: AttentionMaps,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sbert_search.lab.attention.maps.PAGE_NUMBERS", 10)
    assert [path.suffix for path in maps.write(tmp_path)] == [".npz", ".json"]
    assert re.search(r"[\d,]+ probabilities are too many for a page", capsys.readouterr().err)
    assert PAGE_NUMBERS > 12 * 12 * 256**2


def test_long_texts_are_cut_and_blank_ones_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_bi_encoder(tmp_path / "tokens").save(tmp_path / "bi")
    maps = analyze_attention(tmp_path / "bi", "the cat " * 20)
    assert len(maps.tokens) == 24
    assert "18 tokens were cut off; the model reads 24" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="TEXT2 is blank"):
        analyze_attention(tmp_path / "bi", "cat", " ")


def test_unsupported_models_are_refused_by_name(tmp_path: Path) -> None:
    tiny_bi_encoder(tmp_path / "tokens").save(tmp_path / "bi")
    edit(tmp_path / "bi", "config.json", model_type="nomic_bert")
    with pytest.raises(ModelError, match="nomic_bert"):
        analyze_attention(tmp_path / "bi", "cat")


def test_an_unknown_word_is_no_separator(tmp_path: Path) -> None:
    maps = analyze_attention(bare(tmp_path / "model", "bert"), "cat \U0001f600 sat")
    assert "[UNK]" in maps.tokens
    assert [t for t, special in zip(maps.tokens, maps.special, strict=True) if special] == [
        "[CLS]",
        "[SEP]",
    ]
    first = maps.heads[0]
    shares = maps.probabilities[0, 0, 1:-1, -1]  # of every token of the text on [SEP]
    assert first.separator == pytest.approx(float(shares.mean()), abs=1e-6)


def test_a_text_that_gives_no_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"'\\u200b' has no character that the model reads"):
        analyze_attention(bare(tmp_path / "model", "bert"), "\u200b")
