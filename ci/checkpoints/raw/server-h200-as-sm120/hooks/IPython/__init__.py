"""Stands in for IPython, which is not carried."""
