"""Qwen2.5-VL's vision tower for small images of one size: the library's numbers, all images in one product.

The library runs attention image by image (window by window). Where all images have the same patches and every block
sees the whole image, images are rows of one batch, and the reordering into windows, which only full attention undoes,
falls away.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from bapo.engines.fast import sampler

#: Larger towers gain nothing.
MAX_PARAMETERS = 64_000_000


def supports(visual: Any) -> bool:
    """Return whether ``visual`` is a tower whose images :func:`forward` can compute, if they are of one size."""
    parameters = list(visual.parameters())
    return (
        type(visual).__name__ == "Qwen2_5_VisionTransformerPretrainedModel"
        and all(p.device.type == "cpu" for p in parameters)
        and sampler.are_plain([*visual.modules()], parameters, MAX_PARAMETERS)
    )


def fits(visual: Any, grids: Tensor) -> bool:
    """Return whether every block sees whole images of these patches, int64 [images, 3], and all are of one size."""
    t, height, width = grids[0].tolist()
    window = visual.window_size // visual.patch_size  # in patches; a larger one sees the whole image
    whole = height <= window and width <= window
    alike = t == 1 and bool((grids == grids[0]).all())
    return alike and (whole or set(visual.fullatt_block_indexes) >= set(range(len(visual.blocks))))


def forward(visual: Any, pixels: Tensor, grids: Tensor) -> Tensor:
    """Turn [images * patches, values] into [images * image tokens, hidden of the language model]."""
    count, (_, height, width) = len(grids), grids[0].tolist()
    merge, patches = visual.spatial_merge_size, height * width
    cos, sin = _rotations(visual, height, width, merge)
    x = F.linear(pixels, visual.patch_embed.proj.weight.flatten(1))
    for block in visual.blocks:
        attention = block.attn
        h = _norm(x, block.norm1)
        qkv = F.linear(h, attention.qkv.weight, attention.qkv.bias).view(count, patches, 3, attention.num_heads, -1)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        q, k = (y * cos + _half_turned(y) * sin for y in (q, k))
        h = F.scaled_dot_product_attention(q, k, v, scale=attention.scaling)
        x = x + F.linear(h.transpose(1, 2).reshape(len(x), -1), attention.proj.weight, attention.proj.bias)
        x = x + block.mlp(_norm(x, block.norm2))
    merger = visual.merger
    return merger.mlp(_norm(x, merger.ln_q).view(-1, merger.hidden_size))


def _norm(x: Tensor, norm: Any) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), norm.weight, norm.variance_epsilon)


def _half_turned(x: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def _rotations(visual: Any, height: int, width: int, merge: int) -> tuple[Tensor, Tensor]:
    """Return cosines and sines [patches, size of a head] in the order of patches: merged squares, row by row."""
    rows = torch.arange(height)[:, None].expand(height, width)
    columns = torch.arange(width)[None, :].expand(height, width)
    both = torch.stack([rows, columns], -1)
    both = both.view(height // merge, merge, width // merge, merge, 2).transpose(1, 2).reshape(-1, 2)
    angles = visual.rotary_pos_emb(both)
    angles = torch.cat([angles, angles], -1)
    return angles.cos(), angles.sin()
