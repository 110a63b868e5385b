"""Records of what was measured at a checkpoint, each recomputed from the raw files beside it."""
