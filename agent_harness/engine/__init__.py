"""
Who moves: sessions, turns and followers. asyncio only; no HTTP, no vendor.
"""
