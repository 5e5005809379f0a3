"""
What testers get: a mock model server that is as strict as the real ones, and servers in threads for synchronous tests.
"""
