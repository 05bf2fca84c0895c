"""The KV tensors: allocation, stored forms with their scales, and block copies within and between tiers."""
