"""From the bytes of records to filled batches. Imports no TensorFlow."""
