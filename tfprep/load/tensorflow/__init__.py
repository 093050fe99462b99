"""The loader as a `tf.data.Dataset`. Importing the modules of this package imports TensorFlow."""
