"""Engines from the gateway's side: how one is started, spoken to, watched and replaced."""
