"""ONNX Runtime sessions for local models: on the CPU, one thread."""

from pathlib import Path

import onnxruntime as ort


def open_session(path: Path) -> ort.InferenceSession:
    """Returns a session that uses only the thread that runs it."""
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
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
