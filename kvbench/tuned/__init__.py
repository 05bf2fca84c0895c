"""Winners of kernel tuning: their format, where they are kept, and which one a shape gets."""
