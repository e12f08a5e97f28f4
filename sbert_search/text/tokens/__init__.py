"""Turn text into token ids: tokenizers, vocabularies, sentence splitting, pre-training examples."""
