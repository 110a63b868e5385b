"""The offline bundle: a patched SGLang with what it needs, for one kind of machine."""
