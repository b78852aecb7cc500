// Products of matrices of float32, by a kernel of WebAssembly: four rows by eight columns at a time, summed in float32 as
// torch sums them. The module is put together here, instruction by instruction. Where a browser has no vectors, and for what
// is thin, long or of float64, the plain loop computes the same.
"use strict";
globalThis.UPS ??= {};
(() => {
  const ROWS = 4, COLUMNS = 8, DEEPEST = 1024, PAGE = 2 ** 16;

  /** The bytes of a module with `memory` and `panel(a, b, out, k, panels)`: out[i] = aᵀ[i] b for each panel of rows. */
  function assembled() {
    const number = (n) => (n < 128 ? [n] : [(n & 127) | 128, ...number(n >>> 7)]);
    const sized = (bytes) => [...number(bytes.length), ...bytes];
    const list = (items) => [...number(items.length), ...items.flat()];
    const section = (id, bytes) => [id, ...sized(bytes)];
    const text = (word) => sized([...word].map((letter) => letter.charCodeAt(0)));
    const I32 = 0x7f, VECTOR = 0x7b, FUNCTION = 0x60, NOTHING = 0x40;
    const [a, b, out, k, panels, left, row, x, low, high] = Array(10).keys(), sum = (i) => 10 + i, sums = Array.from({ length: 2 * ROWS }, (_, i) => i);
    const get = (local) => [0x20, local], set = (local) => [0x21, local], tee = (local) => [0x22, local];
    const vector = (code, ...rest) => [0xfd, ...number(code), ...rest];
    const load = (offset) => vector(0, 2, ...number(offset)), spread = (offset) => vector(9, 2, ...number(offset)), store = (offset) => vector(11, 2, ...number(offset));
    const ZERO = vector(12, ...Array(16).fill(0)), ADD = vector(228), MULTIPLY = vector(230);
    const moved = (local, bytes) => [...get(local), 0x41, ...number(bytes), 0x6a, ...set(local)];
    const again = (local) => [...get(local), 0x41, 1, 0x6b, ...tee(local), 0x0d, 0, 0x0b]; // one less; if any are left, once more
    const LOOP = [0x03, NOTHING];
    const body = [
      ...LOOP,
      ...sums.flatMap((i) => [...ZERO, ...set(sum(i))]), ...get(k), ...set(left), ...get(b), ...set(row),
      ...LOOP,
      ...get(row), ...load(0), ...set(low), ...get(row), ...load(16), ...set(high),
      ...sums.flatMap((i) => [
        ...(i % 2 ? [] : [...get(a), ...spread(2 * i), ...set(x)]),
        ...get(sum(i)), ...get(x), ...get(i % 2 ? high : low), ...MULTIPLY, ...ADD, ...set(sum(i)),
      ]),
      ...moved(a, 4 * ROWS), ...moved(row, 4 * COLUMNS), ...again(left),
      ...sums.flatMap((i) => [...get(out), ...get(sum(i)), ...store(16 * i)]),
      ...moved(out, 4 * ROWS * COLUMNS), ...again(panels),
      0x0b,
    ];
    return Uint8Array.from([
      0, 0x61, 0x73, 0x6d, 1, 0, 0, 0,
      ...section(1, list([[FUNCTION, ...list(Array(5).fill([I32])), 0]])),
      ...section(3, list([[0]])),
      ...section(5, list([[0, 1]])),
      ...section(7, list([[...text("memory"), 2, 0], [...text("panel"), 0, 0]])),
      ...section(10, list([sized([...list([[2, I32], [3 + 2 * ROWS, VECTOR]]), ...body])])),
    ]);
  }

  const bytes = assembled(), vectors = WebAssembly.validate(bytes);
  const { memory, panel } = vectors ? new WebAssembly.Instance(new WebAssembly.Module(bytes)).exports : {};

  /** Numbers of the module's memory: those of `a` as panels of rows, then room for a panel of `b` and of the result. */
  function room(count) {
    const more = Math.ceil((4 * count - memory.buffer.byteLength) / PAGE);
    if (more > 0) memory.grow(more);
    return new Float32Array(memory.buffer, 0, count);
  }

  /** out (m, n) += a (m, k) b (k, n), all float32, from places in them. */
  function fast(out, a, b, m, k, n, fromA, fromB, to) {
    const panels = Math.ceil(m / ROWS), placeB = panels * ROWS * k, place = placeB + COLUMNS * k;
    const held = room(place + panels * ROWS * COLUMNS);
    for (let i = 0; i < panels * ROWS; i++) {
      const at = fromA + i * k, first = Math.floor(i / ROWS) * ROWS * k + (i % ROWS);
      if (i < m) for (let p = 0; p < k; p++) held[first + p * ROWS] = a[at + p];
      else for (let p = 0; p < k; p++) held[first + p * ROWS] = 0;
    }
    for (let j = 0; j < n; j += COLUMNS) {
      const wide = Math.min(COLUMNS, n - j);
      for (let p = 0; p < k; p++) {
        const at = fromB + p * n + j, put = placeB + p * COLUMNS;
        for (let c = 0; c < COLUMNS; c++) held[put + c] = c < wide ? b[at + c] : 0;
      }
      panel(0, 4 * placeB, 4 * place, k, panels);
      for (let i = 0; i < m; i++) {
        const at = place + i * COLUMNS, put = to + i * n + j;
        for (let c = 0; c < wide; c++) out[put + c] += held[at + c];
      }
    }
  }

  /** The same of any numbers, summed in float64. */
  function plain(out, a, b, m, k, n, fromA, fromB, to) {
    for (let i = 0; i < m; i++) {
      const row = fromA + i * k, line = to + i * n;
      let j = 0;
      for (; j + 3 < n; j += 4) {
        let s0 = 0, s1 = 0, s2 = 0, s3 = 0;
        for (let p = 0, at = fromB + j; p < k; p++, at += n) {
          const x = a[row + p];
          s0 += x * b[at]; s1 += x * b[at + 1]; s2 += x * b[at + 2]; s3 += x * b[at + 3];
        }
        out[line + j] += s0; out[line + j + 1] += s1; out[line + j + 2] += s2; out[line + j + 3] += s3;
      }
      for (; j < n; j++) {
        let s = 0;
        for (let p = 0, at = fromB + j; p < k; p++, at += n) s += a[row + p] * b[at];
        out[line + j] += s;
      }
    }
  }

  /** out (m, n) += a (m, k) b (k, n), for each of a batch. */
  UPS.matrixProduct = (out, a, b, batch, m, k, n) => {
    const single = [out, a, b].every((values) => values instanceof Float32Array);
    const worth = m >= 2 * ROWS && n >= COLUMNS && k >= 4 && k <= DEEPEST; // what is copied is used often enough; sums stay exact
    const one = vectors && single && worth ? fast : plain;
    for (let each = 0; each < batch; each++) one(out, a, b, m, k, n, each * m * k, each * k * n, each * m * n);
  };
})();
