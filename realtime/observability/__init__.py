"""Metrics, traces, logs and the listing of streams: observers of the hub, that change nothing."""
