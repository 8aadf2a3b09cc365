"""Before int8: outlying channels of activations are moved into the weights, where a scale per channel can hold them.

One scale serves a whole activation tensor in int8, and a few channels of a transformer are ten times as large as the
others, which then keep two or three bits. Dividing the channels of an input by c and multiplying the weights' columns
by c changes nothing in exact arithmetic. Source: Xiao et al., "SmoothQuant" (ICML 2023), equations 3 and 4; there a
LayerNorm takes the division in, here it is a product of its own, since in BERT the residual reads the same tensor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

MIGRATION = 0.75  # how much of the difficulty goes into the weights; 0.5 and 1 kept less of the order
FLOOR = 0.1  # of the median peak: a channel that these texts hardly stir may still be stirred by another
SHIFTS = (1, 2, 5)  # each text is paired with those so many places further on
TEXTS = (
    "You mend pumps and valves on ships, read the drawings and order the parts you need.",
    "Sound knowledge of SQL, Java and of at least one message broker (Kafka, RabbitMQ).",
    "keep accounts. Record what a business earns and spends, day by day, and reconcile it with the bank each month.",
    "Counsels families in debt and visits them at home; a car is provided.",
    "Set up, run and clean filling machines in a dairy, in shifts, with up to 25 kg to lift.",
    "program robots. Write and test the programs by which industrial robots weld, paint or move parts.",
    "Lehrkraft für Mathematik gesucht, 20 Stunden je Woche",
    "principles of insulation. How heat passes through walls, and which materials keep it in or out of a building.",
    "C++ (computer programming)",
    "Friendly, punctual and good with people; fluent English and some Polish.",
    "cut hair. Wash, cut and style hair for women, men and children, and advise them on products for their hair.",
    "Responsible for tenders: you collect quotations, compare prices and negotiate the terms with suppliers abroad.",
)


def smooth(network: Any, feed: Callable[[str, str], dict[str, Any]]) -> None:
    """Rescale the inputs of the linear layers in place; those with one or two outputs, or several inputs, are left.

    Parameters
    ----------
    network : torch.nn.Module
        In evaluation mode, float32.
    feed : callable
        Given two texts, returns the network's inputs for the pair; called for pairs of `TEXTS`.
    """
    import torch

    peaks: dict[int, Any] = {}  # by layer: the largest value of each input channel
    readers: dict[int, list[Any]] = {}  # by input: the layers that read it, in the pair at hand
    alive: list[Any] = []  # inputs of the pair at hand, so that no number stands for two

    def watch(layer: Any, inputs: tuple[Any, ...]) -> None:
        states = inputs[0]
        alive.append(states)
        readers.setdefault(id(states), []).append(layer)
        peak = states.abs().flatten(0, -2).amax(0)
        peaks[id(layer)] = torch.maximum(peaks.get(id(layer), peak), peak)

    layers = [part for part in network.modules() if isinstance(part, torch.nn.Linear) and part.out_features > 2]
    hooks = [layer.register_forward_pre_hook(watch) for layer in layers]
    with torch.inference_mode():
        for shift in SHIFTS:
            for one, other in zip(TEXTS, (*TEXTS[shift:], *TEXTS[:shift]), strict=True):
                readers.clear()
                alive.clear()
                network(**feed(one, other))
    for hook in hooks:
        hook.remove()
    times = Counter(id(layer) for readings in readers.values() for layer in readings)
    with torch.no_grad():
        for readings in readers.values():  # layers that read one tensor share its quantised form, so they share c
            group = [layer for layer in readings if times[id(layer)] == 1]  # DeBERTa's read words and positions
            if not group:
                continue
            weight = torch.stack([layer.weight.abs().amax(0) for layer in group]).amax(0).clamp(min=1e-5)
            peak = peaks[id(group[0])]
            peak = peak.clamp(min=max(FLOOR * float(peak.median()), 1e-5))
            c = peak**MIGRATION / weight ** (1 - MIGRATION)
            c = c / c.log().mean().exp()
            inverse = 1 / c
            for layer in group:
                layer.weight.mul_(c)
                layer.register_buffer("inverse", inverse)
                layer.register_forward_pre_hook(_divide)


def _divide(layer: Any, inputs: tuple[Any, ...]) -> Any:
    return inputs[0] * layer.inverse
