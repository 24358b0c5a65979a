"""An engine that others connect to: who may join, by which door, and what becomes of their streams."""
