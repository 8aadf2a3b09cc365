"""Cross-encoders in int8 on the processor, through ONNX Runtime.

Weights are int8 with a scale per output channel, fixed at export; activations are quantised at run time, with the scale
of the tensor at hand. In a batch that scale would depend on the neighbours and their padding, so a run holds one pair:
its score cannot depend on anything else, to the bit, and the pairs of a query run side by side on the cores.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from ranker.core.artifacts import cache_dir, digest, sha256_file, write_json
from ranker.core.errors import InputError, ResourceError, missing_extra
from ranker.core.types import Float32
from rerankers.classifier import Source, load_classifier, logits_to_score, padded
from rerankers.smoothing import smooth

FORMAT = 1
FILE = "model.int8.onnx"
MANIFEST = "manifest.json"
OPSET = 17


def _runtime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        raise missing_extra("onnxruntime", "int8") from error
    return onnxruntime


def is_exported(folder: Path) -> bool:
    """Tell whether a folder was written by `export`."""
    return (folder / FILE).is_file()


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of an exported model.

    Raises
    ------
    InputError
        If it cannot be read, is of another format, or does not describe the model beside it.
    """
    try:
        value = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if value["format"] != FORMAT:
            raise InputError(f"{folder} has format {value['format']}, this version reads {FORMAT}; export it anew")
        good = value["sha256"] == sha256_file(folder / FILE)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / MANIFEST} is not readable ({error}); export the model anew") from error
    if not good:
        raise InputError(f"{folder / FILE} is not the file that its manifest describes; export the model anew")
    return dict(value)


def export(source: Source, out: Path) -> Path:
    """Write a model, its adapter merged, as an int8 graph with its tokeniser and a manifest.

    Weights are kept to 7 bits (`reduce_range`): with 8, processors without VNNI saturate sums of products, and scores
    would differ from machine to machine.

    Parameters
    ----------
    source : Source
        A sequence classifier.
    out : Path
        A folder that is made; what it held before is replaced file by file.

    Returns
    -------
    Path
        `out`.

    Raises
    ------
    PrerequisiteError
        If onnx or onnxruntime is not installed.
    ResourceError
        As `rerankers.classifier.load_classifier`, or if the folder cannot be written.
    """
    _runtime()
    try:
        from onnxruntime.quantization import QuantType, quantize_dynamic
        from onnxruntime.quantization.shape_inference import quant_pre_process
    except ImportError as error:
        raise missing_extra("onnx", "int8") from error
    network = load_classifier(source, "float32", attn_implementation="eager").cpu()
    tokenizer = source.tokenizer()
    smooth(network, lambda one, other: tokenizer(one, other, truncation=True, return_tensors="pt"))
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(f"cannot write {out}: {error.strerror or error}; choose a writable place") from error
    with tempfile.TemporaryDirectory(dir=out) as scratch:
        traced, plain = Path(scratch) / "traced.onnx", Path(scratch) / "plain.onnx"
        _trace(network, traced)
        quant_pre_process(traced, plain, skip_symbolic_shape=True)
        quantize_dynamic(plain, out / FILE, per_channel=True, reduce_range=True, weight_type=QuantType.QInt8)
    tokenizer.save_pretrained(str(out))
    network.config.save_pretrained(str(out))
    write_json(
        out / MANIFEST,
        {
            "format": FORMAT,
            "sha256": sha256_file(out / FILE),
            "backbones": source.backbones(),
            "weights": "int8, 7 bits, per channel",
            "made_with": {name: version(name) for name in ("torch", "transformers", "onnx", "onnxruntime")},
        },
    )
    return out


def _trace(network: Any, target: Path) -> None:
    """Write the float32 graph; its inputs are int64[n, length], its output float32[n]."""
    import torch

    class Scores(torch.nn.Module):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, input_ids: Any, attention_mask: Any, token_type_ids: Any) -> Any:
            typed = {"token_type_ids": token_type_ids} if typed_ids else {}
            return logits_to_score(self.network(input_ids=input_ids, attention_mask=attention_mask, **typed).logits)

    typed_ids = int(getattr(network.config, "type_vocab_size", 0) or 0) > 1
    ids = torch.arange(5, 21)[None]
    names = ["input_ids", "attention_mask", "token_type_ids"]
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter("ignore")  # the tracer warns of every shape that is a constant, as it should be here
        torch.onnx.export(
            Scores().eval(), (ids, torch.ones_like(ids), torch.zeros_like(ids)), str(target), input_names=names,
            output_names=["score"], dynamic_axes={**{name: {0: "n", 1: "length"} for name in names}, "score": {0: "n"}},
            opset_version=OPSET, dynamo=False,
        )


def cached_export(source: Source) -> Path:
    """Return the exported form of a model from the cache, where it lies under the weights' revision, or make it."""
    key = digest([FORMAT, *source.identities])[:16]
    folder = cache_dir() / "onnx" / key
    if not (folder / MANIFEST).is_file():  # written last
        folder.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{key}."))
        try:
            export(source, scratch)
            if not folder.exists():  # else another process was quicker, with the same content
                scratch.rename(folder)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return folder


class OnnxClassifier:
    """An exported cross-encoder, one pair per run, as many runs side by side as there are cores."""

    def __init__(self, folder: Path, pad: int) -> None:
        runtime = _runtime()
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        try:
            self._session = runtime.InferenceSession(
                str(folder / FILE), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ONNX Runtime's errors share no other base
            raise ResourceError(f"{folder / FILE}: ONNX Runtime cannot load it ({str(error)[:200]})") from error
        self._names = {entry.name for entry in self._session.get_inputs()}
        self._pad = pad
        affinity = getattr(os, "sched_getaffinity", None)
        self._workers = ThreadPoolExecutor(len(affinity(0)) if affinity else os.cpu_count() or 1, "int8")

    def _one(self, pair: tuple[Sequence[int], Sequence[int]]) -> np.float32:
        feed = {name: value for name, value in padded([pair], self._pad).items() if name in self._names}
        return np.float32(self._session.run(None, feed)[0][0])

    def __call__(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Float32:
        """Return float32[n_pairs] for pairs of (ids, token types)."""
        return np.fromiter(self._workers.map(self._one, pairs), dtype=np.float32, count=len(pairs))
