"""Self-attention over packed tokens, computed in one of five ways.

1. `self_attention`, fused: torch's kernels for texts of different lengths, without padding.
2. `self_attention`, explicit: scores written out, for relative positions and for attention maps.
3. `selected_tokens`: the last block computes only the tokens whose output is used, such as [CLS].
4. `cpu_dropout`: attention with dropout on a CPU, with a gradient of its own.
5. `sbert_search.models.padded_bi_encoder`: padded batches, for export as a graph (ONNX).

`relative` adds DeBERTa's terms of relative position to the scores.
"""
