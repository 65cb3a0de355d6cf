//! A test double of libcuda.so.
