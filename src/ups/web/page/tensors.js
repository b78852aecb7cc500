// Tensors, and programs of operations on them as `ups.web.traced` writes them down. What an operation means is what
// torch says of the one of its name; sums are made in float64, but those of products (products.js).
"use strict";
globalThis.UPS ??= {};
(() => {
  const TYPES = { f4: Float32Array, f8: Float64Array, u1: Uint8Array };

  const stridesOf = (shape) => {
    const strides = new Array(shape.length);
    for (let axis = shape.length - 1, step = 1; axis >= 0; axis--) {
      strides[axis] = step;
      step *= shape[axis];
    }
    return strides;
  };

  /** Values seen with a shape: a view, as torch has them. */
  class Tensor {
    constructor(values, shape, strides = stridesOf(shape), offset = 0) {
      Object.assign(this, { values, shape, strides, offset });
    }

    static empty(shape, kind) { return new Tensor(new TYPES[kind](UPS.product(shape)), shape); }

    get size() { return UPS.product(this.shape); }

    get whole() {
      let step = 1;
      for (let axis = this.shape.length - 1; axis >= 0; axis--) {
        if (this.shape[axis] !== 1 && this.strides[axis] !== step) return false;
        step *= this.shape[axis];
      }
      return true;
    }

    /** All values one after another. */
    dense() {
      if (this.whole) return this.values.subarray(this.offset, this.offset + this.size);
      return byPoint(same, new Tensor(new this.values.constructor(this.size), this.shape), [this]).values;
    }

    permuted(axes) { return new Tensor(this.values, axes.map((a) => this.shape[a]), axes.map((a) => this.strides[a]), this.offset); }

    /** From `start` on every `step`-th of an axis, `count` of them. */
    cut(axis, start, count, step = 1) {
      const shape = [...this.shape], strides = [...this.strides];
      shape[axis] = count;
      strides[axis] *= step;
      return new Tensor(this.values, shape, strides, this.offset + start * this.strides[axis]);
    }

    without(axes) {
      const kept = (_, axis) => !axes.includes(axis);
      return new Tensor(this.values, this.shape.filter(kept), this.strides.filter(kept), this.offset);
    }

    with(axis, shape = [...this.shape.slice(0, axis), 1, ...this.shape.slice(axis)]) {
      return new Tensor(this.values, shape, [...this.strides.slice(0, axis), 0, ...this.strides.slice(axis)], this.offset);
    }

    /** Axes of one point repeated, and new ones before them. */
    spread(shape) {
      const more = shape.length - this.shape.length;
      const strides = shape.map((n, axis) => (axis < more || (this.shape[axis - more] === 1 && n !== 1) ? 0 : this.strides[axis - more]));
      return new Tensor(this.values, shape.map((n, axis) => (n < 0 ? this.shape[axis - more] : n)), strides, this.offset);
    }
  }

  const same = (a) => a, sum = (a, b) => a + b, times = (a, b) => a * b, plusTimes = (a, b, c) => a + b * c;
  const sigmoid = (x) => 1 / (1 + Math.exp(-x)), silu = (x) => x * sigmoid(x);
  const low = (x, l) => (x < l ? l : x), high = (x, h) => (x > h ? h : x); // NaN stays
  const NOTHING = Float64Array.of(0);

  /** What most points are computed by, with a loop for a line of each: a function that is called for each point costs more. */
  const LINES = new Map([
    [same, (n, o, p, so, a, x, sa) => {
      if (so === 1 && sa === 1) o.set(a.subarray(x, x + n), p);
      else for (let i = 0; i < n; i++, p += so, x += sa) o[p] = a[x];
    }],
    [sum, (n, o, p, so, a, x, sa, b, y, sb) => { for (let i = 0; i < n; i++, p += so, x += sa, y += sb) o[p] = a[x] + b[y]; }],
    [times, (n, o, p, so, a, x, sa, b, y, sb) => { for (let i = 0; i < n; i++, p += so, x += sa, y += sb) o[p] = a[x] * b[y]; }],
    [plusTimes, (n, o, p, so, a, x, sa, b, y, sb, c, z, sc) => { for (let i = 0; i < n; i++, p += so, x += sa, y += sb, z += sc) o[p] = a[x] + b[y] * c[z]; }],
    [silu, (n, o, p, so, a, x, sa) => { for (let i = 0; i < n; i++, p += so, x += sa) o[p] = silu(a[x]); }],
    [low, (n, o, p, so, a, x, sa, b, y, sb) => { for (let i = 0; i < n; i++, p += so, x += sa, y += sb) o[p] = low(a[x], b[y]); }],
  ]);

  /** `out` = f of up to three tensors or numbers, point by point. */
  function byPoint(f, out, given) {
    const { shape } = out, last = shape.length - 1, inner = last < 0 ? 1 : shape[last], count = last < 0 ? 1 : UPS.product(shape.slice(0, last));
    if (!inner || !count) return out;
    const seen = [out, ...given].map((each) => (each instanceof Tensor ? each.spread(shape) : { values: Float64Array.of(Number(each)), strides: shape.map(() => 0), offset: 0 }));
    while (seen.length < 4) seen.push({ values: NOTHING, strides: shape.map(() => 0), offset: 0 });
    const [o, a, b, c] = seen.map(({ values }) => values), [so, sa, sb, sc] = seen.map(({ strides }) => (last < 0 ? 0 : strides[last]));
    let [io, ia, ib, ic] = seen.map(({ offset }) => offset);
    const place = new Array(Math.max(0, last)).fill(0), strides = seen.map((each) => each.strides), ready = LINES.get(f);
    for (let line = 0; line < count; line++) {
      if (ready) ready(inner, o, io, so, a, ia, sa, b, ib, sb, c, ic, sc);
      else for (let i = 0, p = io, x = ia, y = ib, z = ic; i < inner; i++, p += so, x += sa, y += sb, z += sc) o[p] = f(a[x], b[y], c[z]);
      for (let axis = last - 1; axis >= 0; axis--) {
        const back = ++place[axis] === shape[axis] ? shape[axis] - 1 : -1;
        const by = back < 0 ? 1 : -back;
        io += by * strides[0][axis]; ia += by * strides[1][axis]; ib += by * strides[2][axis]; ic += by * strides[3][axis];
        if (back < 0) break;
        place[axis] = 0;
      }
    }
    return out;
  }

  /** `start` + a b of matrices, or of stacks of them. */
  function multiplied(start, a, b, out) {
    if (start) byPoint(same, out, [start]);
    const [m, k] = a.shape.slice(-2), n = b.shape.at(-1);
    UPS.matrixProduct(out.values, a.dense(), b.dense(), a.shape.length > 2 ? a.shape[0] : 1, m, k, n);
    return out;
  }

  const axesOf = (dims, t) => (dims == null || dims.length === 0 ? t.shape.map((_, axis) => axis) : [dims].flat().map((dim) => (dim + t.shape.length) % t.shape.length));

  /** `f` of each line of values along some axes. */
  function summed(t, dims, out, f) {
    const axes = axesOf(dims, t), others = t.shape.map((_, axis) => axis).filter((axis) => !axes.includes(axis));
    const values = t.permuted([...others, ...axes]).dense(), length = UPS.product(axes.map((axis) => t.shape[axis]));
    for (let i = 0; i < out.values.length; i++) out.values[i] = f(values, i * length, (i + 1) * length);
    return out;
  }

  const folded = (start, f) => (values, from, to) => {
    let found = start;
    for (let i = from; i < to; i++) found = f(found, values[i]);
    return found;
  };
  const total = folded(0, (s, v) => s + v);
  const most = folded(-Infinity, (s, v) => (v > s || v !== v ? v : s)), least = folded(Infinity, (s, v) => (v < s || v !== v ? v : s));
  const at = (dim, t, more = 0) => (dim < 0 ? dim + t.shape.length + more : dim);

  const POINTS = {
    abs: Math.abs, asinh: Math.asinh, cos: Math.cos, exp: Math.exp, log: Math.log, sin: Math.sin, sqrt: Math.sqrt, tanh: Math.tanh,
    isfinite: Number.isFinite, neg: (x) => -x, reciprocal: (x) => 1 / x, relu: (x) => low(x, 0), rsqrt: (x) => 1 / Math.sqrt(x),
    sigmoid, silu, bitwise_not: (x) => !x, logical_not: (x) => !x,
    mul: times, div: (x, y) => x / y, pow: (x, y) => x ** y,
    maximum: (x, y) => (x !== x ? x : y >= x || y !== y ? y : x), minimum: (x, y) => (x !== x ? x : y <= x || y !== y ? y : x),
    clamp_min: low, clamp_max: high,
    eq: (x, y) => x === y, ne: (x, y) => x !== y, lt: (x, y) => x < y, le: (x, y) => x <= y, gt: (x, y) => x > y, ge: (x, y) => x >= y,
    bitwise_and: (x, y) => x && y, logical_and: (x, y) => x && y,
    where: (x, y, z) => (x ? y : z),
  };

  /** Each takes its arguments and an `out` to fill; views leave it alone. */
  const operations = {
    getitem: (list, i) => list[i],
    expand: (t, shape) => t.spread(shape),
    permute: (t, axes) => t.permuted(axes.map((axis) => at(axis, t))),
    transpose: (t, a, b) => t.permuted(t.shape.map((_, axis) => (axis === at(a, t) ? at(b, t) : axis === at(b, t) ? at(a, t) : axis))),
    t: (t) => (t.shape.length < 2 ? t : t.permuted([1, 0])),
    select: (t, dim, i) => t.cut(at(dim, t), i < 0 ? i + t.shape[at(dim, t)] : i, 1).without([at(dim, t)]),
    slice: (t, dim, start, end, step, out) => {
      const n = t.shape[at(dim, t)], first = start ?? 0;
      return t.cut(at(dim, t), Math.min(n, first < 0 ? Math.max(0, first + n) : first), out().shape[at(dim, t)], step);
    },
    split: (t, sizes, dim) => {
      const axis = at(dim, t), n = t.shape[axis], parts = [];
      const each = Array.isArray(sizes) ? sizes : Array.from({ length: Math.ceil(n / sizes) }, (_, i) => Math.min(sizes, n - i * sizes));
      for (let place = 0, i = 0; i < each.length; place += each[i++]) parts.push(t.cut(axis, place, each[i]));
      return parts;
    },
    squeeze: (t, dims) => {
      const axes = typeof dims === "function" ? axesOf(null, t) : axesOf(dims, t);
      return t.without(axes.filter((axis) => t.shape[axis] === 1));
    },
    unbind: (t, dim) => Array.from({ length: t.shape[at(dim, t)] }, (_, i) => t.cut(at(dim, t), i, 1).without([at(dim, t)])),
    flip: (t, dims) => {
      const axes = axesOf(dims, t), back = (stride, axis) => (axes.includes(axis) ? -stride : stride);
      return new Tensor(t.values, t.shape, t.strides.map(back), t.offset + axes.reduce((sum, axis) => sum + (t.shape[axis] - 1) * t.strides[axis], 0));
    },
    unfold: (t, dim, size, step) => {
      const axis = at(dim, t), seen = t.cut(axis, 0, Math.floor((t.shape[axis] - size) / step) + 1, step);
      return new Tensor(t.values, [...seen.shape, size], [...seen.strides, t.strides[axis]], t.offset);
    },
    unsqueeze: (t, dim) => t.with(at(dim, t, 1)),

    add: (x, y, alpha, out) => byPoint(alpha === 1 ? sum : (a, b) => a + alpha * b, out(), [x, y]),
    sub: (x, y, alpha, out) => byPoint((a, b) => a - alpha * b, out(), [x, y]),
    addcmul: (x, y, z, value, out) => byPoint(value === 1 ? plusTimes : (a, b, c) => a + value * b * c, out(), [x, y, z]),
    clamp: (x, from, to, out) => byPoint((a, l, h) => high(low(a, l), h), out(), [x, from ?? -Infinity, to ?? Infinity]),

    sum: (t, ...rest) => summed(t, typeof rest[0] === "function" ? null : rest[0], rest.at(-1)(), total),
    mean: (t, ...rest) => summed(t, typeof rest[0] === "function" ? null : rest[0], rest.at(-1)(), (values, from, to) => total(values, from, to) / (to - from)),
    amax: (t, dims, keep, out) => summed(t, dims, out(), most),
    amin: (t, dims, keep, out) => summed(t, dims, out(), least),
    any: (t, ...rest) => summed(t, typeof rest[0] === "function" ? null : rest[0], rest.at(-1)(), folded(false, (s, v) => s || v)),
    all: (t, ...rest) => summed(t, typeof rest[0] === "function" ? null : rest[0], rest.at(-1)(), folded(true, (s, v) => s && v)),
    _safe_softmax: (t, dim, out) => byPoint((x) => (x === x ? x : 0), out(), [operations._softmax(t, dim, out)]),
    _softmax: (t, dim, out) => {
      const axis = at(dim, t), { shape } = t, kept = shape.map((n, i) => (i === axis ? 1 : n)), line = () => Tensor.empty(kept, "f8");
      const powers = byPoint((x, top) => Math.exp(x - top), Tensor.empty(shape, "f8"), [t, summed(t, axis, line(), most)]);
      return byPoint((x, all) => x / all, out(), [powers, summed(powers, axis, line(), total)]);
    },
    logsumexp: (t, dims, keep, out) => summed(t, dims, out(), (values, from, to) => {
      const top = most(values, from, to);
      let sum = 0;
      for (let i = from; i < to; i++) sum += Math.exp(values[i] - top);
      return Number.isFinite(top) ? top + Math.log(sum) : top;
    }),
    native_layer_norm: (t, own, weight, bias, epsilon) => {
      const n = UPS.product(own), values = t.dense(), made = Tensor.empty(t.shape, "f4"), [scale, shift] = [weight, bias].map((each) => each?.dense());
      for (let line = 0; line < values.length; line += n) {
        const mean = total(values, line, line + n) / n;
        let square = 0;
        for (let i = 0; i < n; i++) square += (values[line + i] - mean) ** 2;
        for (let i = 0; i < n; i++) made.values[line + i] = ((values[line + i] - mean) / Math.sqrt(square / n + epsilon)) * (scale?.[i] ?? 1) + (shift?.[i] ?? 0);
      }
      return [made];
    },

    mm: (a, b, out) => multiplied(null, a, b, out()),
    bmm: (a, b, out) => multiplied(null, a, b, out()),
    addmm: (start, a, b, beta, alpha, out) => multiplied(start, a, b, out()),
    baddbmm: (start, a, b, beta, alpha, out) => multiplied(start, a, b, out()),
    cat: (parts, dim, out) => {
      const made = out(), axis = at(dim, made);
      let place = 0;
      for (const part of parts.filter((each) => each.size)) {
        byPoint(same, made.cut(axis, place, part.shape[axis]), [part]);
        place += part.shape[axis];
      }
      return made;
    },
    stack: (parts, dim, out) => {
      const made = out(), axis = at(dim, made);
      parts.forEach((part, i) => byPoint(same, made.cut(axis, i, 1), [part.with(axis)]));
      return made;
    },
    roll: (t, shifts, dims, out) => {
      const made = out(), axis = at(dims[0], t), n = t.shape[axis], by = ((shifts[0] % n) + n) % n;
      byPoint(same, made.cut(axis, by, n - by), [t.cut(axis, 0, n - by)]);
      byPoint(same, made.cut(axis, 0, by), [t.cut(axis, n - by, by)]);
      return made;
    },
  };
  operations.split_with_sizes = operations.split;
  for (const [name, f] of Object.entries(POINTS)) operations[name] = (...given) => byPoint(f, given.at(-1)(), given.slice(0, -1).slice(0, 3));
  for (const name of "_to_copy _unsafe_view alias clone contiguous detach lift_fresh lift_fresh_copy reshape view view_as".split(" ")) {
    operations[name] = (t, ...rest) => {
      const made = rest.at(-1);
      const values = t.dense();
      return values instanceof TYPES[made.kind] ? new Tensor(values, made.shape) : byPoint(same, made(), [new Tensor(values, made.shape)]);
    };
  }
  const FILLED = { full: 1, full_like: 1, new_full: 2, scalar_tensor: 0 };
  for (const name of ["full", "full_like", "new_full", "scalar_tensor"]) operations[name] = (...given) => byPoint(same, given.at(-1)(), [given[FILLED[name]]]);
  for (const name of ["new_zeros", "zeros", "zeros_like"]) operations[name] = (...given) => given.at(-1)();
  for (const name of ["new_ones", "ones", "ones_like"]) operations[name] = (...given) => byPoint(same, given.at(-1)(), [1]);

  /** A program with its constants. What depends on no input is computed once. */
  class Program {
    constructor({ inputs, operations: list, outputs }, arrays) {
      Object.assign(this, { inputs, outputs, known: new Map(), moving: new Set(Array.from({ length: inputs }, (_, i) => i)) });
      const refers = (value) => (Array.isArray(value) ? value.some(refers) : value !== null && typeof value === "object" && this.moving.has(value.of));
      this.list = list.map(([name, given, shape, kind], i) => {
        const place = inputs + i;
        if (name === "constant") {
          const [told] = given, values = kind === "f4" ? arrays[told].values : TYPES[kind].from(told, (v) => Number(v?.number ?? v));
          this.known.set(place, new Tensor(values, shape));
        } else if (given.some(refers)) this.moving.add(place);
        const made = () => Tensor.empty(shape, kind);
        return { name, given, place, made: Object.assign(made, { shape, kind }) };
      });
      this.run = this.run.bind(this);
      this.settle();
    }

    valueOf(value, found) {
      if (Array.isArray(value)) return value.map((each) => this.valueOf(each, found));
      if (value === null || typeof value !== "object") return value;
      if ("number" in value) return Number(value.number);
      return found[value.of] ?? this.known.get(value.of);
    }

    compute({ name, given, made }, found) {
      return operations[name](...given.map((value) => this.valueOf(value, found)), made);
    }

    settle() {
      for (const each of this.list) {
        if (!this.moving.has(each.place) && !this.known.has(each.place)) this.known.set(each.place, this.compute(each, []));
      }
      this.list = this.list.filter(({ place }) => this.moving.has(place));
      const used = new Set(this.outputs), see = (value) => {
        if (Array.isArray(value)) value.forEach(see);
        else if (value !== null && typeof value === "object") used.add(value.of);
      };
      for (const { given } of this.list) see(given);
      for (const place of [...this.known.keys()]) if (!used.has(place)) this.known.delete(place);
    }

    /** The outputs of inputs, which are arrays of values. */
    run(inputs) {
      const found = [...inputs];
      for (const each of this.list) found[each.place] = this.compute(each, found);
      return this.outputs.map((place) => found[place] ?? this.known.get(place));
    }
  }

  Object.assign(UPS, { Tensor, Program, operations });
})();
