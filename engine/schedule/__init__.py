"""Scheduling: which sequences a step computes, and in which KV blocks. It knows no model and no tensor."""
