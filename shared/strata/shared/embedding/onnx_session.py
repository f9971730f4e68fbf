"""How models run on this machine: ONNX Runtime on the CPU, one thread."""

from pathlib import Path

import onnxruntime as ort


def open_session(path: Path) -> ort.InferenceSession:
    """Returns a session that takes no more than the thread that runs it."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    # The arena keeps the memory of the longest text for good; without it an idle server
    # is smaller, and one text needs little anyway.
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 3
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
