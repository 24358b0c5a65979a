"""Memory: how large the KV cache is, and the pool of the host's memory that it is offloaded to."""
