"""Was every reap right?"""
