"""Training: one batch can be followed from `loop.train` through `step.train_step`. See docs/design.md."""
