"""A network for prediction: batch norms in the weights before them, and what follows a convolution joined to it."""
