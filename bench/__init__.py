"""What Midstream costs, measured beside peers in the same run. See `docs/bench.md`."""
