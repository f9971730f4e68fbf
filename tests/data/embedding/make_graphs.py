"""Makes the graphs of the multilingual embedding model, which are files without weights.

    .venv/bin/python tests/data/embedding/make_graphs.py

Weights are declared as external data; the services read them from the installed packages.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from strata.shared.search.embedding import e5, sentence_encoder

FOLDER = Path(e5.__file__).with_name("data")
_MICROSOFT = "com.microsoft"
_HEADS = 12
_HEAD_DIM = e5.DIM // _HEADS
# Layers of the transformer in which one token has activations so large before the last product
# that a scale of the whole text would leave few steps for those of other tokens.
_LAYERS_WITH_OUTLIERS = (0, 4, 5)


class _Graph:
    """A graph under construction."""

    def __init__(self) -> None:
        self._nodes: list[NodeProto] = []
        self._tensors: dict[str, TensorProto] = {}

    def node(
        self, operator: str, inputs: list[str], output: str, domain: str = "", **attributes: Any
    ) -> str:
        self.nodes(operator, inputs, [output], domain, **attributes)
        return output

    def nodes(
        self,
        operator: str,
        inputs: list[str],
        outputs: list[str],
        domain: str = "",
        **attributes: Any,
    ) -> list[str]:
        self._nodes.append(helper.make_node(operator, inputs, outputs, domain=domain, **attributes))
        return outputs

    def constant(self, name: str, value: object, kind: type) -> str:
        self._tensors[name] = numpy_helper.from_array(np.array(value, kind), name)
        return name

    def weight(self, name: str, shape: tuple[int, ...], kind: int = TensorProto.FLOAT) -> str:
        tensor = TensorProto(name=name, dims=shape, data_type=kind)
        tensor.data_location = TensorProto.EXTERNAL
        location = tensor.external_data.add()
        location.key, location.value = "location", "weights"
        self._tensors[name] = tensor
        return name

    def layer_norm(self, source: str, name: str, width: int, output: str, epsilon: float) -> str:
        inputs = [
            source,
            self.weight(f"{name}.weight", (width,)),
            self.weight(f"{name}.bias", (width,)),
        ]
        return self.node("LayerNormalization", inputs, output, axis=-1, epsilon=epsilon)

    def dense(self, source: str, name: str, inputs: int, outputs: int, output: str) -> str:
        """Multiplies 8-bit numbers: one scale for the whole text, and one per output."""
        factors = [
            source,
            self.weight(f"{name}.weight", (inputs, outputs), TensorProto.INT8),
            self.weight(f"{name}.scale", (outputs,)),
            "",
            self.weight(f"{name}.bias", (outputs,)),
        ]
        return self.node("DynamicQuantizeMatMul", factors, output, _MICROSOFT)

    def dense_by_token(self, source: str, name: str, inputs: int, outputs: int, output: str) -> str:
        """Like `dense`, with one scale per token."""
        self._constants_by_token()
        self.node("Abs", [source], f"{name}.magnitudes")
        self.node("ReduceMax", [f"{name}.magnitudes", "columns"], f"{name}.greatest", keepdims=1)
        self.node("Mul", [f"{name}.greatest", "per_step"], f"{name}.step")
        self.node("Add", [f"{name}.step", "least_scale"], f"{name}.steps")
        self.node("Squeeze", [f"{name}.steps", "columns"], f"{name}.scales")
        self.node(
            "QuantizeLinear", [source, f"{name}.scales", "zero_points"], f"{name}.bytes", axis=0
        )
        weight = self.weight(f"{name}.weight", (inputs, outputs), TensorProto.INT8)
        scale = self.weight(f"{name}.scale", (outputs,))
        factors = [f"{name}.bytes", weight, "one", scale, "zero"]
        self.node("MatMulIntegerToFloat", factors, f"{name}.product", _MICROSOFT)
        self.node("Mul", [f"{name}.product", f"{name}.steps"], f"{name}.scaled")
        bias = self.weight(f"{name}.bias", (outputs,))
        return self.node("Add", [f"{name}.scaled", bias], output)

    def _constants_by_token(self) -> None:
        if "per_step" in self._tensors:
            return
        self.constant("columns", [1], np.int64)
        self.constant("per_step", 1 / 127, np.float32)
        self.constant("least_scale", 1e-8, np.float32)
        self.constant("zero", 128, np.uint8)
        self.constant("one", 1.0, np.float32)
        zeros = self.constant("zeros", [128], np.uint8)
        self.node("Expand", [zeros, "tokens"], "zero_points")

    def model(
        self, name: str, width: int, output: str, shape: list[str | int | None]
    ) -> ModelProto:
        graph = helper.make_graph(
            self._nodes,
            name,
            [helper.make_tensor_value_info("embeddings", TensorProto.FLOAT, ["tokens", width])],
            [helper.make_tensor_value_info(output, TensorProto.FLOAT, shape)],
            list(self._tensors.values()),
        )
        versions = [helper.make_opsetid("", 21), helper.make_opsetid(_MICROSOFT, 1)]
        return helper.make_model(
            graph, opset_imports=versions, ir_version=10, producer_name="strata"
        )


class _E5(_Graph):
    """The transformer: layers of attention and a feed-forward network, normalized after each."""

    _EPSILON = 1e-12

    def build(self) -> ModelProto:
        self.constant("heads", [0, 3, _HEADS, _HEAD_DIM], np.int64)
        self.constant("merged", [-1, e5.DIM], np.int64)
        self.node("Shape", ["embeddings"], "tokens", start=0, end=1)
        hidden = self.layer_norm("embeddings", "norm", e5.DIM, "normed", self._EPSILON)
        for layer in range(e5.LAYERS):
            hidden = self._layer(layer, hidden)
        return self.model("e5", e5.DIM, hidden, ["tokens", e5.DIM])

    def _layer(self, layer: int, hidden: str) -> str:
        width = e5.DIM
        attended = self._attention(layer, hidden)
        attended = self.dense(attended, f"{layer}.output", width, width, f"{layer}.attended")
        self.node("Add", [attended, hidden], f"{layer}.residual1")
        middle = self.layer_norm(
            f"{layer}.residual1", f"{layer}.norm1", width, f"{layer}.middle", self._EPSILON
        )
        inner = self.dense(middle, f"{layer}.inner", width, 4 * width, f"{layer}.wide")
        self.node("Gelu", [inner], f"{layer}.active", _MICROSOFT)
        dense = self.dense_by_token if layer in _LAYERS_WITH_OUTLIERS else self.dense
        outer = dense(f"{layer}.active", f"{layer}.outer", 4 * width, width, f"{layer}.expanded")
        self.node("Add", [outer, middle], f"{layer}.residual2")
        return self.layer_norm(
            f"{layer}.residual2", f"{layer}.norm2", width, f"{layer}.hidden", self._EPSILON
        )

    def _attention(self, layer: int, hidden: str) -> str:
        joined = self.dense(hidden, f"{layer}.attention", e5.DIM, 3 * e5.DIM, f"{layer}.projected")
        self.node("Reshape", [joined, "heads"], f"{layer}.split")
        self.node("Transpose", [f"{layer}.split"], f"{layer}.parts", perm=[1, 2, 0, 3])
        query, key, value = self.nodes(
            "Split",
            [f"{layer}.parts"],
            [f"{layer}.query", f"{layer}.key", f"{layer}.value"],
            axis=0,
            num_outputs=3,
        )
        self.node(
            "FusedMatMul",
            [query, key],
            f"{layer}.scores",
            _MICROSOFT,
            transB=1,
            alpha=_HEAD_DIM**-0.5,
        )
        self.node("Softmax", [f"{layer}.scores"], f"{layer}.shares", axis=-1)
        self.node("MatMul", [f"{layer}.shares", value], f"{layer}.context")
        self.node("Transpose", [f"{layer}.context"], f"{layer}.by_token", perm=[0, 2, 1, 3])
        return self.node("Reshape", [f"{layer}.by_token", "merged"], f"{layer}.heads")


class _SentenceEncoder(_Graph):
    """The averaging network with convolutions."""

    _EPSILON = 1e-12
    _WIDTH = 256

    def build(self) -> ModelProto:
        width, dim, orders = self._WIDTH, sentence_encoder.DIM, sentence_encoder.ORDERS
        self.constant("rows", [0], np.int64)
        self.constant("nothing", 0.0, np.float32)
        self.node("Shape", ["embeddings"], "tokens", start=0, end=1)
        # The markers of start and end have much larger values than the tokens.
        self.dense_by_token("embeddings", "project", dim, len(orders) * width, "projected")
        self.layer_norm("projected", "norm1", len(orders) * width, "normed", self._EPSILON)
        sizes = self.constant("sizes", [width] * len(orders), np.int64)
        parts = self.nodes("Split", ["normed", sizes], [f"{order}.0" for order in orders], axis=1)
        features = ["embeddings"]
        for order, part in zip(orders, parts, strict=True):
            source = part
            for step in (1, 2):
                source = self._convolution(source, order, step)
            features.append(source)
        self.node("Concat", features, "features", axis=1)
        total = dim + len(orders) * width
        self.layer_norm("features", "norm2", total, "normed_features", self._EPSILON)
        self.node("ReduceMean", ["normed_features", "rows"], "mean", keepdims=1)
        self.dense("mean", "sum", total, dim, "summed")
        self.node("Cast", ["tokens"], "count", to=TensorProto.FLOAT)
        self.node("Sqrt", ["count"], "root")
        self.node("Mul", ["summed", "root"], "sentence")
        self.node("Relu", [self._product("sentence", "d0", dim, 320)], "first")
        self._sum("sentence", "p1", dim, "first", "d1", 320, 320, "second_sum")
        self.node("Relu", ["second_sum"], "second")
        self.node("Relu", [self._product("second", "d2", 320, dim)], "third")
        self._sum("second", "p3", 320, "third", "d3", dim, dim, "last")
        self.node("Tanh", ["last"], "vector")
        return self.model("sentence_encoder", dim, "vector", [1, dim])

    def _convolution(self, source: str, order: int, step: int) -> str:
        name, width = f"{order}.{step}", self._WIDTH
        before = (order - 1) // 2
        pads = self.constant(f"{name}.pads", [before, 0, order - 1 - before, 0], np.int64)
        self.node("Pad", [source, pads, "nothing"], f"{name}.padded")
        windows = []
        for place in range(order):
            start = self.constant(f"{name}.start{place}", [place], np.int64)
            self.node("Add", ["tokens", start], f"{name}.end{place}")
            inputs = [f"{name}.padded", start, f"{name}.end{place}", "rows"]
            windows.append(self.node("Slice", inputs, f"{name}.window{place}"))
        self.node("Concat", windows, f"{name}.windows", axis=1)
        self.dense(f"{name}.windows", name, order * width, width, f"{name}.sum")
        self.node("Relu", [f"{name}.sum"], f"{name}.active")
        return self.node("Add", [f"{name}.active", source], f"{name}.result")

    def _sum(
        self,
        left: str,
        left_weight: str,
        left_size: int,
        right: str,
        right_weight: str,
        right_size: int,
        outputs: int,
        output: str,
    ) -> None:
        products = [
            self._product(left, left_weight, left_size, outputs),
            self._product(right, right_weight, right_size, outputs),
        ]
        self.node("Add", products, output)

    def _product(self, source: str, weight: str, inputs: int, outputs: int) -> str:
        return self.node(
            "MatMul", [source, self.weight(weight, (inputs, outputs))], f"{weight}.product"
        )


def graphs() -> dict[str, bytes]:
    """Returns the content of the files by name."""
    return {
        "e5.onnx": _E5().build().SerializeToString(deterministic=True),
        "sentence_encoder.onnx": _SentenceEncoder().build().SerializeToString(deterministic=True),
    }


if __name__ == "__main__":
    for name, content in graphs().items():
        (FOLDER / name).write_bytes(content)
