def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)

    def stub(*arguments, **named):
        raise RuntimeError(f"flashinfer is a stub here, and {__name__}.{name} was called")

    return stub
