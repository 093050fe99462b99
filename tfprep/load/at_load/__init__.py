"""Augmentation at load time: drawn anew in every epoch, applied while batches are filled. Imports no TensorFlow."""
