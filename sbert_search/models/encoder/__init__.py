"""One Transformer encoder for all models of the BERT family, from token ids to hidden states.

Self-attention is computed in one of five ways. The first four compute packed batches: the tokens of
all texts concatenated without padding.

1. `self_attention.packed_attention` uses torch's fused kernels or matrix products.
2. `self_attention.explicit_attention` computes the scores as a tensor. It is used for relative
   positions, for callers that need the attention probabilities, and for dropout that the functions
   of 1 and 4 do not support.
3. `selected_tokens` computes, in the last block, only the tokens whose output is used, such as
   [CLS].
4. `training_layers` has attention with dropout for training on a CPU. Its backward pass is written
   by hand; torch does not derive it.
5. `PaddedBiEncoder` computes padded batches, for the export to ONNX.
"""
