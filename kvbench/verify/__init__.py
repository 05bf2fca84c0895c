"""Random load and injected faults against the invariants: is every byte of KV where the books say?"""
