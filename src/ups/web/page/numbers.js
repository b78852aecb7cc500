// Arrays of fields, (channel, x) or (channel, x, y) with the last axis running fastest, and how they go over a wire.
"use strict";
globalThis.UPS ??= {};
(() => {
  /** One channel of a field as a view. */
  UPS.channel = (fields, channel, points) => fields.subarray(channel * points, (channel + 1) * points);

  UPS.range = (values) => {
    let low = Infinity, high = -Infinity;
    for (const v of values) {
      if (v < low) low = v;
      if (v > high) high = v;
    }
    return low <= high ? [low, high] : [0, 1];
  };

  UPS.union = (a, b) => (a ? [Math.min(a[0], b[0]), Math.max(a[1], b[1])] : b);

  UPS.product = (shape) => shape.reduce((a, b) => a * b, 1);

  /** A field on other points of the same domain, by lines between cell centres; axes wrap around where `periodic`. */
  UPS.resampled = (fields, from, to, periodic) => {
    const channels = fields.length / UPS.product(from), out = new Float32Array(channels * UPS.product(to));
    const axes = from.map((n, axis) => Array.from({ length: to[axis] }, (_, i) => {
      const place = ((i + 0.5) / to[axis]) * n - 0.5, left = Math.floor(place);
      const kept = (j) => (periodic[axis] ? (j + n) % n : Math.min(n - 1, Math.max(0, j)));
      return [kept(left), kept(left + 1), place - left];
    }));
    const [nx, ny = 1] = from, [mx, my = 1] = to;
    for (let c = 0; c < channels; c++) {
      for (let i = 0; i < mx; i++) {
        const [a, b, u] = axes[0][i];
        for (let j = 0; j < my; j++) {
          const [d, e, v] = axes[1]?.[j] ?? [0, 0, 0];
          const at = (x, y) => fields[(c * nx + x) * ny + y];
          const low = at(a, d) * (1 - v) + at(a, e) * v, high = at(b, d) * (1 - v) + at(b, e) * v;
          out[(c * mx + i) * my + j] = low * (1 - u) + high * u;
        }
      }
    }
    return out;
  };

  /** One pass of the weights 1/4, 1/2, 1/4 along each axis, in place. */
  UPS.smooth = (values, shape, periodic) => {
    const [nx, ny = 1] = shape;
    const pass = (count, step, lines, start, wraps) => {
      for (let line = 0; line < lines; line++) {
        const first = start(line), old = Float32Array.from({ length: count }, (_, i) => values[first + i * step]);
        for (let i = 0; i < count; i++) {
          const left = old[i ? i - 1 : wraps ? count - 1 : 0], right = old[i < count - 1 ? i + 1 : wraps ? 0 : i];
          values[first + i * step] = (left + 2 * old[i] + right) / 4;
        }
      }
    };
    pass(nx, ny, ny, (line) => line, periodic[0]);
    if (ny > 1) pass(ny, 1, nx, (line) => line * ny, periodic[1]);
  };

  /** A number for people: four digits, and no more than it needs. */
  UPS.say = (value, digits = 4) => {
    if (value === null || value === undefined || !Number.isFinite(value)) return "–";
    const size = Math.abs(value);
    if (size && (size < 1e-3 || size >= 1e5)) return value.toExponential(Math.max(0, digits - 2)).replace("e+", "e");
    return String(Number(value.toPrecision(digits)));
  };

  /** A message of `ups.web.wire`: two lengths, JSON, arrays. */
  UPS.packed = (told, arrays) => {
    const shapes = Object.fromEntries(Object.entries(arrays).map(([name, { shape }]) => [name, shape]));
    let text = new TextEncoder().encode(JSON.stringify({ ...told, arrays: shapes }));
    const padded = new Uint8Array(Math.ceil(text.length / 4) * 4).fill(32);
    padded.set(text);
    const bodies = Object.values(arrays).map(({ values }) => new Uint8Array(values.buffer, values.byteOffset, values.byteLength));
    const prefix = new Uint32Array([padded.length, bodies.reduce((sum, body) => sum + body.length, 0)]);
    return new Blob([prefix, padded, ...bodies]);
  };

  /** What a message says and its arrays, from a buffer that begins with it; null while it is not whole. */
  UPS.unpacked = (bytes) => {
    if (bytes.length < 8) return null;
    const view = new DataView(bytes.buffer, bytes.byteOffset), size = view.getUint32(0, true), rest = view.getUint32(4, true);
    const length = 8 + size + rest;
    if (bytes.length < length) return null;
    const told = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + size)));
    const body = new Float32Array(bytes.slice(8 + size, length).buffer);
    const arrays = {};
    let place = 0;
    for (const [name, shape] of Object.entries(told.arrays)) {
      const count = UPS.product(shape);
      arrays[name] = { values: body.subarray(place, place + count), shape };
      place += count;
    }
    return { told, arrays, length };
  };
})();
