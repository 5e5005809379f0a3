"""
Who answers: one file per wire dialect.
"""
