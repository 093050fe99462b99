"""The loader's graph path: order, reading and decoding in TensorFlow ops, for serialisation and the tf.data service."""
