"""How large the KV cache is, and what of it waits in the host's memory."""
