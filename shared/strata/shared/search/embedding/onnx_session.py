"""ONNX Runtime sessions for local models: on the CPU, one thread."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime as ort

from strata.shared.search.embedding.prepared_arrays import Arrays

# Prefix of the names of the arrays that are weights of a graph.
_WEIGHT = "weight."
_GREATEST_WEIGHT = 63
# Smaller weights are stored in the file of the model.
_LEAST_BYTES = "2048"
# ONNX Runtime's fused kernels of these are five times slower than the operators that they replace.
_SLOW_FUSIONS = ["SkipLayerNormFusion", "BiasSkipLayerNormFusion", "BiasGeluFusion"]


def open_session(path: Path) -> ort.InferenceSession:
    """Returns a session that uses only the thread that runs it."""
    return ort.InferenceSession(str(path), _options(), providers=["CPUExecutionProvider"])


def open_graph(
    graph: bytes,
    weights: Mapping[str, npt.NDArray[np.generic]],
    *,
    store_as: tuple[Path, str] | None = None,
) -> ort.InferenceSession:
    """Returns a session, as `open_session`, for a model whose weights are not in its file.

    Args:
        graph: The model; its weights are declared as external data.
        weights: The weights by name. They are copied.
        store_as: File for the optimized model, and the name of a file in the same folder for its
            weights, also in the form that this processor needs.
    """
    options = _graph_options()
    if store_as is not None:
        path, weights_name = store_as
        options.optimized_model_filepath = str(path)
        for name, value in (
            ("session.optimized_model_external_initializers_file_name", weights_name),
            ("session.optimized_model_external_initializers_min_size_in_bytes", _LEAST_BYTES),
            ("session.save_external_prepacked_constant_initializers", "1"),
        ):
            options.add_session_config_entry(name, value)
    values = [ort.OrtValue.ortvalue_from_numpy(value) for value in weights.values()]
    options.add_external_initializers(list(weights), values)
    return ort.InferenceSession(
        graph, options, providers=["CPUExecutionProvider"], disabled_optimizers=_SLOW_FUSIONS
    )


def open_stored_graph(path: Path) -> ort.InferenceSession:
    """Returns a session of a model that `open_graph` stored; its weights are mapped."""
    options = _graph_options()
    # It is optimized already.
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def quantized(name: str, matrix: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
    """Returns the weights of a dense layer in 8 bits, and their scales, by the names in the graph.

    They use 7 of the 8 bits: processors without VNNI add pairs of products in 16 bits, which must
    not overflow.

    Args:
        name: The layer.
        matrix: Inputs x outputs; each output gets a scale.
    """
    scale = np.abs(matrix).max(axis=0) / _GREATEST_WEIGHT
    return {
        f"{name}.weight": np.rint(matrix / scale).astype(np.int8),
        f"{name}.scale": scale.astype(np.float32),
    }


def stored_weights(weights: Arrays) -> dict[str, npt.NDArray[Any]]:
    """Returns the weights of a graph under the names that they have among prepared arrays."""
    return {_WEIGHT + name: value for name, value in weights.items()}


def weights_in(arrays: Arrays) -> dict[str, npt.NDArray[Any]]:
    """Returns the weights of a graph, by name, that are among prepared arrays."""
    return {
        name.removeprefix(_WEIGHT): value
        for name, value in arrays.items()
        if name.startswith(_WEIGHT)
    }


def _graph_options() -> ort.SessionOptions:
    options = _options()
    # Planning which results share memory takes 0.1 s for a graph of 12 layers. Results are freed
    # after their last use without it as well, and runs are as fast.
    options.enable_mem_reuse = False
    return options


def _options() -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    # The arena would keep the memory of the longest text for ever. Without it an idle server needs
    # less memory, and a single text needs little.
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 3
    return options
