"""Real clients: what each loses near the keep-alive edge, of a stock server and of a
guarded one.
"""
