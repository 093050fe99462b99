"""The loader's graph path: order, reading and decoding in TensorFlow ops, for `gs://`, serialisation and the tf.data service."""
