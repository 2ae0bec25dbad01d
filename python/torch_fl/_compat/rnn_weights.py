# SPDX-License-Identifier: Apache-2.0
"""`RNNBase.flatten_parameters` puts a recurrent layer's weights into one buffer, but only for tensors of one vendor.

Without it the vendor's library copies the weights together at every call, and torch warns about it.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.nn.modules.rnn import RNNBase

from torch_fl import native
from torch_fl._compat import Patch, record


def apply() -> None:
    """Extends the method to flagos weights. May be called again; the second call does nothing."""
    original = RNNBase.flatten_parameters
    if hasattr(original, "_torch_fl"):
        return

    @functools.wraps(original)
    def flatten_parameters(self: Any) -> None:
        weights = self._flat_weights
        if weights and all(isinstance(w, torch.Tensor) and w.device.type == "flagos" for w in weights):
            if len(weights) == len(self._flat_weights_names):
                _flatten(self)
        else:
            original(self)

    flatten_parameters._torch_fl = True  # type: ignore[attr-defined]
    RNNBase.flatten_parameters = flatten_parameters
    record(Patch("torch.nn.RNNBase.flatten_parameters", "2.10-", "flagos weights go into one buffer as well"))


def _flatten(module: Any) -> None:
    weights = module._flat_weights
    first = weights[0]
    # vendor-word: torch's names for this library and its operators, also below
    from torch.backends.cudnn import rnn  # vendor-word: as above

    same = all(w.dtype == first.dtype and w.device == first.device for w in weights)
    if not same or len({w.data_ptr() for w in weights}) != len(weights):  # aliased weights stay where they are
        return
    views = [native.to_native(w.detach()) for w in weights]
    acceptable = torch.backends.cudnn.is_acceptable  # vendor-word: as above
    if not torch._use_cudnn_rnn_flatten_weight() or not all(map(acceptable, views)):  # vendor-word: as above
        return
    with torch.no_grad(), torch.flagos.device_of(first):
        buffer = torch._cudnn_rnn_flatten_weight(  # vendor-word: as above
            views,
            (4 if module.bias else 2) + (1 if module.proj_size > 0 else 0),
            module.input_size,
            rnn.get_cudnn_mode(module.mode),  # vendor-word: as above
            module.hidden_size,
            module.proj_size,
            module.num_layers,
            module.batch_first,
            bool(module.bidirectional),
        )
        flat = native.from_native(buffer)
        for weight, view in zip(weights, views, strict=True):  # the operator moved the views into the buffer
            weight.data = flat.as_strided(view.size(), view.stride(), view.storage_offset())
