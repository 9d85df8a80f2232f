"""Samplers against the promises of their participations."""
