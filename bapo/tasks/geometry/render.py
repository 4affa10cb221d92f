"""Render diagrams as PNG files with NumPy and Pillow: black lines on white, angles as sectors of three colours."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np

from bapo.tasks.geometry.figures import Diagram, Drawing, draw

#: Red, blue, green; how much each channel loses where a sector covers a pixel whole.
COLOURS = 255.0 - np.array([[225.0, 40.0, 40.0], [40.0, 80.0, 230.0], [30.0, 170.0, 60.0]])
#: Half the width of a line and the radius of a sector, in pixels of an image of 48.
LINE, RADIUS = 0.6, 8.0
_CHUNK = 256


def render(diagrams: Sequence[Diagram], canvas: int) -> list[bytes]:
    """Render each diagram as a PNG file of ``canvas`` x ``canvas`` pixels, with the same bytes on every call."""
    from PIL import Image

    files: list[bytes] = [b""] * len(diagrams)
    for kind in {d.kind for d in diagrams}:
        places = [i for i, d in enumerate(diagrams) if d.kind == kind]
        for start in range(0, len(places), _CHUNK):
            chunk = places[start : start + _CHUNK]
            for place, pixels in zip(chunk, paint(draw([diagrams[i] for i in chunk], canvas), canvas), strict=True):
                buffer = io.BytesIO()
                Image.fromarray(pixels).save(buffer, "PNG")
                files[place] = buffer.getvalue()
    return files


def paint(drawing: Drawing, canvas: int) -> np.ndarray:
    """Paint N drawings of one kind as uint8 [N, canvas, canvas, 3], edges smoothed over a pixel."""
    centres = np.arange(canvas, dtype=np.float32) + 0.5
    x, y = centres[None, :], centres[:, None]
    unit = canvas / 48
    image = np.full((len(drawing.segments), canvas, canvas, 3), 255.0, dtype=np.float32)
    for colour, sector in zip(COLOURS, np.moveaxis(drawing.sectors, 1, 0).astype(np.float32), strict=False):
        image -= _sector(sector, x, y, RADIUS * unit)[..., None] * colour.astype(np.float32)
    ink = np.zeros(image.shape[:3], dtype=np.float32)
    for segment in np.moveaxis(drawing.segments, 1, 0).astype(np.float32):
        np.maximum(ink, _line(segment, x, y, LINE * unit), out=ink)
    return np.clip(np.rint(image * (1 - ink[..., None])), 0, 255).astype(np.uint8)


def _line(segment: np.ndarray, x: np.ndarray, y: np.ndarray, half_width: float) -> np.ndarray:
    """Return the coverage [N, h, w] of segments [N, 2, 2]."""
    px, py = (segment[:, 0, i, None, None] for i in (0, 1))
    dx, dy = (segment[:, 1, i, None, None] - segment[:, 0, i, None, None] for i in (0, 1))
    t = np.clip(((x - px) * dx + (y - py) * dy) / np.maximum(dx * dx + dy * dy, 1e-9), 0, 1)
    return np.clip(half_width + 0.5 - np.hypot(x - px - t * dx, y - py - t * dy), 0, 1)


def _sector(sector: np.ndarray, x: np.ndarray, y: np.ndarray, radius: float) -> np.ndarray:
    """Return the coverage [N, h, w] of sectors [N, 3, 2], each less than half a disc, whichever side comes first."""
    (vx, vy), (ax, ay), (bx, by) = ([sector[:, i, j, None, None] for j in (0, 1)] for i in range(3))
    turn = np.sign(ax * by - ay * bx)
    from_first = turn * (ax * (y - vy) - ay * (x - vx))
    from_second = turn * ((x - vx) * by - (y - vy) * bx)
    inside = np.minimum(np.minimum(from_first, from_second), radius - np.hypot(x - vx, y - vy))
    return np.clip(inside + 0.5, 0, 1)
