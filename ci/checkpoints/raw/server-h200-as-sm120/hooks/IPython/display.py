HTML = display = None
