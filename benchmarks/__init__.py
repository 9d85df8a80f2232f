"""Benchmarks of speed, memory and accuracy, compared with other libraries. Each file covers one topic."""
