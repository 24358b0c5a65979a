"""Reliability experiments: Midstream's promises under faults, load and attack, one module an experiment."""
