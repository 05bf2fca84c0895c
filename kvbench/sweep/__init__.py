"""The stories: run a suite from its file to its sealed run folder."""
