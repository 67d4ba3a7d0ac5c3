"""What tests of several rooms share: servers to try things on, worlds to try them in,
and how to wait.
"""
