"""Tensor-parallel processes: the ranks that share one model among several devices, in step."""
