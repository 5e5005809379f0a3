"""
What is said: commands in, items kept, events out. Pure: no asyncio, no aiohttp, no vendor.
"""
