"""What `kvbench recommend` goes by: the question, the evidence, requests served on the virtual clock. Torch-free."""
