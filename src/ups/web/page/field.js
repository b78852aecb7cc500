// Fields as colours: a 2D field as a map, a 1D field over time; and a scale beside them.
"use strict";
globalThis.UPS ??= {};
(() => {
  const scratch = document.createElement("canvas");

  /**
   * Paints values, given as at(column, row from the bottom), on a canvas: columns and rows of a window are seen.
   * view: {x: [from, to], y: [from, to]} in shares of the whole.
   */
  function raster(canvas, columns, rows, at, [low, high], map, view, smooth, ratio) {
    const { context: g, width, height } = UPS.sized(canvas, ratio), colours = UPS.table(map), scale = 255 / (high - low || 1);
    if (scratch.width !== columns || scratch.height !== rows) Object.assign(scratch, { width: columns, height: rows });
    const pen = scratch.getContext("2d", { willReadFrequently: true }), image = pen.createImageData(columns, rows);
    const pixels = new Uint32Array(image.data.buffer);
    for (let row = 0; row < rows; row++) {
      const line = (rows - 1 - row) * columns;
      for (let column = 0; column < columns; column++) {
        const value = at(column, row);
        if (value === value) pixels[line + column] = colours[Math.max(0, Math.min(255, ((value - low) * scale) | 0))];
      }
    }
    pen.putImageData(image, 0, 0);
    g.imageSmoothingEnabled = smooth;
    g.imageSmoothingQuality = "high";
    const [x0, x1] = view.x, [y0, y1] = view.y;
    g.drawImage(scratch, x0 * columns, (1 - y1) * rows, (x1 - x0) * columns, (y1 - y0) * rows, 0, 0, width, height);
    return { context: g, width, height };
  }

  UPS.whole = { x: [0, 1], y: [0, 1] };

  /** One channel of a 2D field; x goes to the right, y up. */
  UPS.map = (canvas, values, [nx, ny], range, name, view = UPS.whole, ratio) =>
    raster(canvas, nx, ny, (i, j) => values[i * ny + j], range, name, view, true, ratio);

  /** One channel of a 1D field over time, which goes up; `frames` are rows, `rows` as many as there is room for. */
  UPS.strip = (canvas, frames, points, rows, range, name, view = UPS.whole) =>
    raster(canvas, points, rows, (i, row) => (frames[row] ? frames[row][i] : NaN), range, name, { x: view.x, y: [0, 1] }, false);

  /** The colours of a map from its lowest to its highest value. */
  UPS.scale = (canvas, name) => {
    const { context: g, width, height } = UPS.sized(canvas), colours = UPS.table(name);
    for (let i = 0; i < width; i++) {
      const colour = colours[Math.round((i / Math.max(1, width - 1)) * 255)];
      g.fillStyle = `rgb(${colour & 255} ${(colour >> 8) & 255} ${(colour >> 16) & 255})`;
      g.fillRect(i, 0, 1.5, height);
    }
  };

  /** Where in the domain a pointer is, in shares of it. */
  UPS.placeIn = (canvas, event, view) => {
    const box = canvas.getBoundingClientRect();
    const u = (event.clientX - box.left) / box.width, v = 1 - (event.clientY - box.top) / box.height;
    return [view.x[0] + u * (view.x[1] - view.x[0]), view.y[0] + v * (view.y[1] - view.y[0])];
  };

  /** A brush at (u, v) of a map: soft towards `value`, or hard where what is painted has edges. */
  UPS.brush = (values, [nx, ny], [u, v], wide, value, soft, periodic) => {
    const size = Math.max(wide, 0.71 / Math.min(nx, ny)); // half a cell's diagonal: a cell at least
    const near = (place, n, wraps, i) => {
      let d = Math.abs((i + 0.5) / n - place);
      return wraps ? Math.min(d, 1 - d) : d;
    };
    for (let i = 0; i < nx; i++) {
      const dx = near(u, nx, periodic[0], i);
      if (dx > 3 * size) continue;
      for (let j = 0; j < ny; j++) {
        const r = Math.hypot(dx, near(v, ny, periodic[1], j)) / size;
        if (soft ? r < 3 : r <= 1) values[i * ny + j] += (value - values[i * ny + j]) * (soft ? Math.exp(-0.5 * (2 * r) ** 2) : 1);
      }
    }
  };
})();
