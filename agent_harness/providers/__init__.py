"""
Trying a model server: what it does, and which setting would cure what it does wrong.
"""
