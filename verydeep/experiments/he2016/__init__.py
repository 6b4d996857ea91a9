"""He et al. 2016 as experiments: tables, figures, and what its text reports; `part` has their names."""
