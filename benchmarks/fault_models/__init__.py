"""Models with one known fault each, and healthy models that look ill. `benchmarks/faults.py` and its test run them."""
