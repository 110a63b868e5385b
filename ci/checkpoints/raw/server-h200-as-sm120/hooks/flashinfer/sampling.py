from . import absent

__getattr__ = absent(__name__)
