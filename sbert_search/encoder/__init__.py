"""Token ids to hidden states: one Transformer encoder for the whole BERT family.

`EncoderConfig` describes an encoder, and `presets` has the published configurations. `PackedTokens`
is a batch without padding, `Encoder` is the model, and `weights` reads and writes the published
file formats (layouts).
"""
