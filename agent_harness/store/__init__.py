"""
Where sessions are kept beyond the life of a process.
"""
