"""TFRecords that tfprep did not write: an index says where each record and each feature is, so that they open as a dataset.

`index_tfrecords` reads the shards once and writes the index; `tfprep.dataset.dataset` opens it. Nothing of the shards is copied.
"""
