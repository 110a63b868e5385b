"""Find the commit of a patched tree, or of this repository, that gained or lost a figure."""
