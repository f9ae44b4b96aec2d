"""The lazy array: dtypes, nodes, tensors, ops, and what is set around them."""
