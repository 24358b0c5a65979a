"""Sampling: from logits to tokens, with a row of parameters for each stream."""
