"""What people read: tables of a run. Torch-free."""
