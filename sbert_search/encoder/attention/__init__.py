"""Self-attention, computed in one of five ways.

The first four compute packed batches: the tokens of all texts concatenated without padding.

1. `self_attention.packed_attention` uses torch's fused kernels or matrix products.
2. `self_attention.explicit_attention` computes the scores as a tensor. It is used for relative
   positions, for callers that need the attention probabilities, and for dropout that the functions
   of 1 and 4 do not support.
3. `selected_tokens` computes, in the last block, only the tokens whose output is used, such as
   [CLS].
4. `cpu_dropout` is for training with dropout on a CPU. Its backward pass is written by hand; torch
   does not derive it.
5. `sbert_search.models.padded_bi_encoder` computes padded batches, for the export to ONNX.

`relative` computes DeBERTa's scores of relative positions.
"""
