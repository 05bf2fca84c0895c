"""Batch and admission policies: small rules over the scheduler's moves."""
