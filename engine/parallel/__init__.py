"""The processes that share one model among several devices, in step."""
