"""A run of the benchmark as one page: figures, findings and tables that need no network to be looked at."""
