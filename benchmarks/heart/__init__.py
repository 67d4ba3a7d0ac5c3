"""What the core costs: a touch, a tick, a connection's bytes, a mass expiry; how exact
it is; the parts around it.
"""
