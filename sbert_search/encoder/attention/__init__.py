"""Self-attention, computed in one of five ways.

The first four compute packed batches: the tokens of all texts concatenated without padding.

1. `self_attention.packed_attention` uses torch's fused kernels or matrix products.
2. `self_attention.explicit_attention` computes the scores as a tensor, for relative positions, for
   callers that need the attention probabilities, and for dropout that 1 and 4 do not support.
3. `selected_tokens` computes, in the last block, only the tokens whose output is used, such as
   [CLS].
4. `cpu_dropout` is for training with dropout on a CPU. It computes its gradient by its own code,
   not by torch's autograd.
5. `sbert_search.models.padded_bi_encoder` computes padded batches, for export as a graph (ONNX).

`relative` computes DeBERTa's scores of relative positions.
"""
