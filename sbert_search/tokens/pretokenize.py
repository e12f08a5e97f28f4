"""Tokenise documents into shards for pre-training."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer

from sbert_search.base.progress import progress
from sbert_search.corpus.documents import CorpusReader
from sbert_search.corpus.shard_writer import SHARD_TOKENS, ShardWriter
from sbert_search.corpus.shards import TokenShards
from sbert_search.records import Document
from sbert_search.tokens.sentences import split_sentences


def write_token_shards(
    reader: CorpusReader,
    tokenizer: Tokenizer,
    folder: Path,
    *,
    wrapped: bool = False,
    shard_tokens: int = SHARD_TOKENS,
) -> TokenShards:
    """Split documents into sentences, tokenise the sentences, and write the tokens to shards.

    An interrupted run resumes after the last complete shard. If all shards are complete already,
    this function opens them and writes nothing. A title is used only for a document without a text.
    A special token that is spelled out in a text, such as "[SEP]", is tokenised as text. Sentences
    are neither padded nor truncated, even if the settings of the tokenizer ask for it.

    Args:
        reader: The documents.
        tokenizer: The tokenizer; it is not modified.
        folder: Folder for the shards.
        wrapped: True: the lines of the texts were wrapped at a fixed width, as in books, so a line
            end inside a paragraph does not end a sentence. False: every line end ends a sentence.
        shard_tokens: Minimum number of tokens of each shard except the last.

    Raises:
        CorpusError: A source cannot be read or has no tokens, or the folder holds shards that were
            made from another source, with another tokenizer or with other settings.
    """
    survey = reader.survey()
    plain = Tokenizer.from_str(tokenizer.to_str())
    plain.no_padding()
    plain.no_truncation()
    tokenizer_json = plain.to_str()
    identity: dict[str, object] = {
        "source_sha256": survey.sha256,
        "tokenizer_sha256": hashlib.sha256(tokenizer_json.encode("utf-8")).hexdigest(),
        "wrapped": wrapped,
    }
    if reader.fields.texts:  # if empty, the reader detects the text field
        identity["text_fields"] = list(reader.fields.texts)
    vocab_size = tokenizer.get_vocab_size()
    plain.encode_special_tokens = True
    with (
        ShardWriter(
            folder, vocab_size=vocab_size, identity=identity, shard_tokens=shard_tokens
        ) as writer,
        progress("Tokenising", survey.rows) as advance,
    ):
        rows = writer.rows
        advance(rows)
        for batch in [] if writer.finished else reader.batches(skip_rows=rows):
            writer.add(_tokenised(batch.documents, plain, wrapped), batch.rows_end)
            advance(batch.rows_end - rows)
            rows = batch.rows_end
        if not writer.finished:
            writer.finish(rows)
    return TokenShards(folder)


def _tokenised(
    documents: Sequence[Document], tokenizer: Tokenizer, wrapped: bool
) -> list[list[list[int]]]:
    sentences = [split_sentences(d.text or d.title, wrapped=wrapped) for d in documents]
    flat = [sentence for document in sentences for sentence in document]
    ids = (encoding.ids for encoding in tokenizer.encode_batch_fast(flat, add_special_tokens=False))
    return [list(islice(ids, len(document))) for document in sentences]
