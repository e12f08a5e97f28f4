"""Pre-training of an encoder from raw text: MLM, NSP or SOP, replaced tokens, distillation."""
