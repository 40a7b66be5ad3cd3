"""Whole screens: each arranges widgets and hands them the newest snapshot."""
