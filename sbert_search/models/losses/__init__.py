"""Loss functions of embeddings or logits.

The caller runs the model. In distributed training it also gathers the embeddings of all processes
for the losses that compare the rows of a batch with each other.
"""
