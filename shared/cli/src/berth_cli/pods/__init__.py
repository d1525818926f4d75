"""Explains pods to people and programs: their Decisions, their messages, and why they wait."""
