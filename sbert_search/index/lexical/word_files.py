"""Read and write the words of a segment: an Arrow file with ascending words and their counts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sbert_search.base import files
from sbert_search.base.folders import Entry
from sbert_search.errors import CorruptIndex
from sbert_search.index.lexical.analyzer import STOP_WORD, term_reader
from sbert_search.index.lexical.vocabulary import BATCH_WORDS, SCHEMA, WordList
from sbert_search.index.lexical_settings import LexicalSettings
from sbert_search.index.storage.manifest import FileRecord
from sbert_search.index.storage.segments import REMAKE, check_hash

LISTED_FROM = 256  # smallest number of documents of a segment with a file of words


def lists_words(n_docs: int) -> bool:
    """Whether a segment (a part of the index) has a file of words.

    The words of a small segment are read from its texts. One more file, which a commit has to sync
    to the disk, would make the commit of a few documents slower.
    """
    return n_docs >= LISTED_FROM


def read_words(view: memoryview, record: FileRecord) -> WordList:
    """Map a file of words.

    Raises:
        CorruptIndex: The bytes differ from the record of the file, or are no sound Arrow file.
    """
    check_hash(view, record, REMAKE)
    try:
        reader = pa.ipc.open_file(pa.py_buffer(view))
        batches = [reader.get_batch(i) for i in range(reader.num_record_batches)]
        for batch in batches:
            batch.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise CorruptIndex(record.name, "a sound Arrow file", str(error), REMAKE) from error
    return WordList(batches)


def write_words(place: Entry, batches: Iterable[pa.RecordBatch]) -> FileRecord:
    """Write ascending words with counts to a file, in batches of `BATCH_WORDS` words."""
    from sbert_search.index.storage.segment_writer import BatchWriter, record_of

    with files.NewFile(place) as file:
        writer = BatchWriter(file, SCHEMA, BATCH_WORDS)
        for batch in batches:
            writer.write(pa.Table.from_batches([batch]))
        writer.close()
    return record_of(file)


def with_terms(
    batches: Iterable[pa.RecordBatch], terms: NDArray[np.uint64], settings: LexicalSettings
) -> Iterator[pa.RecordBatch]:
    """Keep the words whose term hashes are among ``terms``, and stop words, which have no term."""
    reader = term_reader(settings)
    known = np.append(terms, np.uint64(STOP_WORD))
    for batch in batches:
        hashes = reader.hashes(batch.column(0).to_pylist())
        yield batch.filter(pa.array(np.isin(hashes, known)))
