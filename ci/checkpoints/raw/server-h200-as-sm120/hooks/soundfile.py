"""Stands in for soundfile, which is not carried."""
