"""The tools behind `python -m patchset`: apply, prove and export the patch series."""
