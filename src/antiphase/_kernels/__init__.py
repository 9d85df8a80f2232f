"""Compiled kernels: plain loops over plain arrays, one algorithm a file. Import them where they are used."""
