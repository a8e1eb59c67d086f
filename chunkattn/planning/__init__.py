"""Decisions before a kernel runs: which backend and configuration serve a problem, and how a step is cut into work."""
