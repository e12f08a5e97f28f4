"""From text to token ids: tokenizers, vocabularies, sentences, and pre-training examples."""
