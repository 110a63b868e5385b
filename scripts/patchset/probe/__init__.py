"""Programs that measure one tree, run as processes of their own from a copy outside that tree."""
