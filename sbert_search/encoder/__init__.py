"""One Transformer encoder for all models of the BERT family, from token ids to hidden states.

`EncoderConfig` describes an encoder, and `presets` has the published configurations. `PackedTokens`
is a batch without padding, `Encoder` is the model, and `weights` reads and writes the published
file formats (layouts).
"""
