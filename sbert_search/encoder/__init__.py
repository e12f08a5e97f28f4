"""Token ids to hidden states: one Transformer encoder for the whole BERT family.

`EncoderConfig` (with the published shapes in `presets`) describes an encoder, `PackedTokens` is its
input without padding, `Encoder` computes, and `weights` reads and writes the published layouts.
"""
