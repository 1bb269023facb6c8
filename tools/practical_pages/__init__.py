"""Fills the pages of docs/practicals: see tools/practicals.py."""
