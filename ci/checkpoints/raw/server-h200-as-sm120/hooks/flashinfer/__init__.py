"""Stands in for FlashInfer, which is not carried: importable where SGLang imports it unguarded, never called."""
