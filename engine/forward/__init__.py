"""The forward pass: model runners, attention backends, and CUDA graphs of the decode step."""
