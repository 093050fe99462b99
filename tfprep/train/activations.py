"""How many bytes the forward pass must keep for the backward pass, read off the traced graph."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

_SAME_BUFFER = ("Identity", "Reshape", "Squeeze", "ExpandDims", "StopGradient", "IdentityN", "PreventGradient")
_NO_ACTIVATION = ("ReadVariableOp", "Const", "Placeholder", "Shape", "VarHandleOp", "CaptureOp")


def activation_bytes(model: Any, inputs: Any) -> int:
    """Bytes of the tensors that the forward pass computes and the backward pass reads, for inputs of these
    `tf.TensorSpec`s.

    A tensor that is only viewed anew (Reshape, Identity) counts once; weights, constants and the inputs do not count. XLA
    may keep less, for it computes some again; workspaces of the kernels come on top.
    """

    def step(batch: Any) -> Any:
        with tf.GradientTape() as tape:
            outputs = model(batch, training=True)
            total = tf.add_n([tf.reduce_sum(tf.cast(part, tf.float32)) for part in tf.nest.flatten(outputs)])
        return tape.gradient(total, [variable.value for variable in model.trainable_variables])

    graph = tf.function(step, autograph=False).get_concrete_function(inputs).graph
    return sum(map(_bytes, _kept(graph).values()))


def _kept(graph: Any) -> dict[str, Any]:
    kept = {}
    for operation in graph.get_operations():
        if not _is_backward(operation):
            continue
        for tensor in operation.inputs:
            source = _source(tensor)
            if not _is_backward(source.op) and source.op.type not in _NO_ACTIVATION:
                kept[source.name] = source
    return kept


def _is_backward(operation: Any) -> bool:
    return "gradient_tape" in operation.name


def _source(tensor: Any) -> Any:
    while tensor.op.type in _SAME_BUFFER and not _is_backward(tensor.op):
        tensor = tensor.op.inputs[0]
    return tensor


def _bytes(tensor: Any) -> int:
    shape = [size or 1 for size in tensor.shape.as_list()] if tensor.shape.rank is not None else [1]
    size = tensor.dtype.size if tensor.dtype not in (tf.variant, tf.resource, tf.string) else 0
    return int(np.prod(shape, dtype=np.int64)) * size
