"""
The version, in one place that imports nothing.
"""

__all__ = ["VERSION"]

VERSION = "0.1.0"
