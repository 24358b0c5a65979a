"""Benchmarks of Midstream, beside peers that are measured in the same run. See `docs/bench.md`."""
