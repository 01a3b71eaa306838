"""The trainer: the run loop, the compiled block, data, state and checkpoints."""
