"""Stands in for FlashInfer, which is not carried: importable where SGLang imports it unguarded, and raises if called."""


def absent(module):
    """The ``__getattr__`` of a module: each of its names is a function that raises."""

    def __getattr__(name):
        if name.startswith("__"):
            raise AttributeError(name)

        def raises(*arguments, **named):
            raise RuntimeError(f"FlashInfer is not here, and {module}.{name} was called")

        return raises

    return __getattr__
