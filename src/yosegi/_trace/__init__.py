"""Functions as graphs: tracing, gradients, jit."""
