"""Speculative decoding: cheap drafts of the next tokens, verified by the model several at a time."""
