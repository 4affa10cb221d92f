"""Diagrams of the laptop's geometry task: triangles, quadrilaterals and parallel lines with coloured angles.

A diagram is a handful of whole numbers, so that it has a name and renders to the same pixels everywhere.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

#: Kinds of diagrams with the number of their angles; the last one of triangle and quadrilateral is not coloured.
KINDS = {"triangle": 3, "quadrilateral": 4, "parallels": 1}
#: Space around the figure, in pixels.
MARGIN = 2
#: The shortest side of a quadrilateral, in units of its first.
_SHORTEST = 0.35
#: Parallel lines reach this far from their crossing, and the transversal this far beyond the lines.
_REACH, _BEYOND = 0.9, 0.55
_EAST = np.array([1.0, 0.0])


class Diagram(NamedTuple):
    """Describes one diagram.

    angles, in degrees: red, blue and the plain one of a triangle; red, blue, green and the plain one of a
    quadrilateral; of parallel lines the one between them and the transversal. shape: the second side of a quadrilateral
    in percent of its first; of parallel lines 4 * i + j, where i and j are the places of the red and the blue angle at
    their crossings; else 0. tilt: degrees, counter-clockwise; mirror: 0 or 1; size: the longer side of the figure's
    box, in pixels; left, top: the place of the box in hundredths of the free space.
    """

    kind: str
    angles: tuple[int, ...]
    shape: int
    tilt: int
    mirror: int
    size: int
    left: int
    top: int

    @property
    def name(self) -> str:
        pose = (self.shape, self.tilt, self.mirror, self.size, self.left, self.top)
        return f"{self.kind}:{'-'.join(map(str, self.angles))}:{','.join(map(str, pose))}"


@dataclass
class Drawing:
    """Holds N figures in pixels, y downwards.

    segments: float64 [N, K, 2, 2], from and to; sectors: float64 [N, M, 3, 2], a vertex and the directions (unit
    vectors) of its two sides; a colour is the place of its sector.
    """

    segments: np.ndarray
    sectors: np.ndarray


def _unit(degrees: np.ndarray) -> np.ndarray:
    radians = np.deg2rad(degrees)
    return np.stack([np.cos(radians), np.sin(radians)], -1)


def _polygon(points: np.ndarray, marked: int) -> Drawing:
    """Draw polygons with sectors at the first ``marked`` corners. points: [N, corners, 2]."""
    following, before = np.roll(points, -1, 1), np.roll(points, 1, 1)

    def direction(to: np.ndarray) -> np.ndarray:
        side = to - points
        return side / np.linalg.norm(side, axis=-1, keepdims=True)

    sectors = np.stack([points, direction(following), direction(before)], 2)
    return Drawing(np.stack([points, following], 2), sectors[:, :marked])


def _triangles(angles: np.ndarray, shape: np.ndarray) -> Drawing:
    red, blue = angles[:, 0], angles[:, 1]
    origin = np.zeros((len(angles), 2))
    height = np.sin(np.deg2rad(blue)) / np.sin(np.deg2rad(red + blue))
    return _polygon(np.stack([origin, origin + _EAST, height[:, None] * _unit(red)], 1), 2)


def quadrilateral_corners(angles: np.ndarray, shape: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (corners [N, 4, 2], whether no side is too short [N]). angles: [N, 4]; shape: [N], percent."""
    red, blue, green = angles[:, 0], angles[:, 1], angles[:, 2]
    first = np.zeros((len(angles), 2))
    second = first + _EAST
    third = second + (shape / 100)[:, None] * _unit(180.0 - blue)
    onward, home = _unit(360.0 - blue - green), _unit(red)
    # third + t * onward = u * home
    cross = onward[:, 0] * home[:, 1] - onward[:, 1] * home[:, 0]
    cross = np.where(np.abs(cross) < 1e-6, 1e-6, cross)
    t = (home[:, 0] * third[:, 1] - home[:, 1] * third[:, 0]) / cross
    u = (onward[:, 0] * third[:, 1] - onward[:, 1] * third[:, 0]) / cross
    fits = (t > _SHORTEST) & (u > _SHORTEST) & (t < 2) & (u < 2)
    return np.stack([first, second, third, u[:, None] * home], 1), fits


def _quadrilaterals(angles: np.ndarray, shape: np.ndarray) -> Drawing:
    return _polygon(quadrilateral_corners(angles, shape)[0], 3)


def _parallels(angles: np.ndarray, shape: np.ndarray) -> Drawing:
    slope = angles[:, 0].astype(float)
    along, across = np.broadcast_to(_unit(np.zeros(1)), (len(slope), 2)), _unit(slope)
    lower = np.zeros((len(slope), 2))
    upper = across / across[:, 1:]  # the lines' distance is 1
    segments = [np.stack([crossing - _REACH * along, crossing + _REACH * along], 1) for crossing in (upper, lower)]
    segments.append(np.stack([lower - _BEYOND * across, upper + _BEYOND * across], 1))
    rays = np.stack([np.zeros_like(slope), slope, np.full_like(slope, 180), slope + 180], 1)
    rows = np.arange(len(slope))
    sectors = [
        np.stack([crossing, _unit(rays[rows, corner]), _unit(rays[rows, (corner + 1) % 4])], 1)
        for crossing, corner in ((upper, shape // 4), (lower, shape % 4))
    ]
    return Drawing(np.stack(segments, 1), np.stack(sectors, 1))


_DRAW = {"triangle": _triangles, "quadrilateral": _quadrilaterals, "parallels": _parallels}


def draw(diagrams: list[Diagram], canvas: int) -> Drawing:
    """Draw diagrams of one kind on square images of ``canvas`` pixels."""
    angles = np.array([d.angles for d in diagrams])
    pose = np.array([d[2:] for d in diagrams], dtype=np.float64)
    shape, tilt, mirror, size, left, top = pose.T
    drawing = _DRAW[diagrams[0].kind](angles, shape.astype(int))
    # axes of length 1 broadcast what each diagram has against the points [N, K, 2, 2] and [N, M, 3, 2]
    across, up = (_unit(degrees[:, None, None]) for degrees in (tilt, tilt + 90))
    flip = np.where(mirror == 1, -1.0, 1.0)[:, None, None]

    def turned(points: np.ndarray) -> np.ndarray:
        x, y = points[..., 0] * flip, -points[..., 1]  # y downwards
        return np.stack([x * axis[..., 0] + y * axis[..., 1] for axis in (across, up)], -1)

    segments, sectors = turned(drawing.segments), turned(drawing.sectors)
    corners = segments.reshape(len(diagrams), -1, 2)
    low, extent = corners.min(1), np.ptp(corners, 1)
    scale = (size / extent.max(1))[:, None]
    shift = MARGIN + (canvas - 2 * MARGIN - extent * scale) * np.stack([left, top], 1) / 100

    def placed(points: np.ndarray) -> np.ndarray:
        return (points - low[:, None, None]) * scale[:, None, None] + shift[:, None, None]

    sectors[:, :, :1] = placed(sectors[:, :, :1])  # directions stay as they are
    return Drawing(placed(segments), sectors)


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
        indices = [i for i, d in enumerate(diagrams) if d.kind == kind]
        for start in range(0, len(indices), _CHUNK):
            chunk = indices[start : start + _CHUNK]
            for index, pixels in zip(chunk, paint(draw([diagrams[i] for i in chunk], canvas), canvas), strict=True):
                buffer = io.BytesIO()
                Image.fromarray(pixels).save(buffer, "PNG")
                files[index] = buffer.getvalue()
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
