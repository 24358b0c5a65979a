"""The keeper: engines on many machines, kept there by Ray.

It knows Ray, machines and what an engine asks of them, and no token: what engines compute goes from them to
gateways, past Ray. No gateway imports it; one finds engines by the file that `agent` writes.
"""
