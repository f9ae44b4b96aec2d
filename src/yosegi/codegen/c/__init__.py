"""The C family: kernels as source text for OpenCL C, CUDA C and MSL."""
