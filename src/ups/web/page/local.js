// The backend that computes the model which this page holds, and the start of the page with it.
"use strict";
(() => {
  const gridOf = (shape) => shape.join("x");

  async function unzipped(base64) {
    const bytes = Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));
    const whole = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Uint8Array(await new Response(whole).arrayBuffer());
  }

  /** The Fourier transform of lines of n complex numbers, in place: halves while they are even, then by the sum. */
  function transformed(re, im) {
    const n = re.length;
    if (n === 1) return;
    if (n % 2) {
      const [a, b] = [re.slice(), im.slice()];
      for (let k = 0; k < n; k++) {
        re[k] = im[k] = 0;
        for (let j = 0; j < n; j++) {
          const angle = (-2 * Math.PI * ((j * k) % n)) / n, c = Math.cos(angle), s = Math.sin(angle);
          re[k] += a[j] * c - b[j] * s;
          im[k] += a[j] * s + b[j] * c;
        }
      }
      return;
    }
    const half = (values, first) => Float64Array.from({ length: n / 2 }, (_, i) => values[2 * i + first]);
    const [er, ei, or, oi] = [half(re, 0), half(im, 0), half(re, 1), half(im, 1)];
    transformed(er, ei);
    transformed(or, oi);
    for (let k = 0; k < n / 2; k++) {
      const angle = (-2 * Math.PI * k) / n, c = Math.cos(angle), s = Math.sin(angle);
      const tr = c * or[k] - s * oi[k], ti = s * or[k] + c * oi[k];
      re[k] = er[k] + tr; im[k] = ei[k] + ti;
      re[k + n / 2] = er[k] - tr; im[k + n / 2] = ei[k] - ti;
    }
  }

  /** The energy of the modes whose wave number rounds to k = 0, 1, …, as `ups.metrics.power_spectrum` has it. */
  UPS.spectrum = (values, [nx, ny = 1]) => {
    const re = Float64Array.from(values), im = new Float64Array(nx * ny);
    const along = (count, step, first) => {
      const places = Array.from({ length: count }, (_, i) => first + i * step);
      const [a, b] = [re, im].map((from) => Float64Array.from(places, (p) => from[p]));
      transformed(a, b);
      places.forEach((p, i) => { re[p] = a[i]; im[p] = b[i]; });
    };
    for (let j = 0; j < ny; j++) along(nx, ny, j);
    for (let i = 0; ny > 1 && i < nx; i++) along(ny, 1, i * ny);
    const count = Math.floor((ny > 1 ? Math.min(nx, ny) : nx) / 2) + 1, shells = new Array(count).fill(0);
    for (let i = 0; i < nx; i++) {
      for (let j = 0; j < ny; j++) {
        const k = Math.round(Math.hypot(Math.min(i, nx - i), Math.min(j, ny - j)));
        if (k < count) shells[k] += (re[i * ny + j] ** 2 + im[i * ny + j] ** 2) / (nx * ny) ** 2;
      }
    }
    return shells;
  };

  const tensor = (values, shape) => new UPS.Tensor(values, shape);
  const number = (value) => tensor(Float32Array.of(value), [1]);

  /** What a step of another length, or a field beyond what was trained on, is to be told of; each once. */
  function notesOf(task, info, dt) {
    const [least, most] = info.leads, told = new Set(), notes = [];
    if (!info.steady && (dt < 0.99 * least || dt > 1.01 * most)) notes.push(`dt = ${UPS.say(dt)} is outside the lead times that task '${task}' was trained on (${least === most ? UPS.say(least) : `${UPS.say(least)} to ${UPS.say(most)}`})`);
    return (fields, points) => {
      info.channels.forEach(({ name }, c) => {
        const [low, high] = info.spans[name], [least, most] = UPS.range(UPS.channel(fields, c, points)), room = 0.05 * (high - low);
        if (told.has(name) || (least >= low - room && most <= high + room)) return;
        told.add(name);
        notes.push(`${name} = ${UPS.say(least)} to ${UPS.say(most)} is outside the range that task '${task}' was trained on (${UPS.say(low)} to ${UPS.say(high)}); do not trust ${info.steady ? "the solution" : "what follows"}`);
      });
      return notes.splice(0);
    };
  }

  UPS.local = (text) => {
    let told, arrays;
    const programs = new Map();
    const program = (key, listed) => {
      if (!programs.has(key)) programs.set(key, new UPS.Program(listed, arrays));
      return programs.get(key);
    };
    const channels = (task) => told.tasks[task].channels.length;

    return {
      async describe() {
        ({ told, arrays } = UPS.unpacked(await unzipped(text)));
        return told;
      },

      async start(task, { name, seed, shape }) {
        const info = told.tasks[task], periodic = info.boundary.map((kind) => kind === "periodic");
        const of = (what) => {
          const { values } = arrays[`${task}/${name}/${seed % info.seeds}/${what}`];
          return gridOf(shape) === gridOf(info.shape) ? values.slice() : UPS.resampled(values, info.shape, shape, periodic);
        };
        return { fields: of("fields"), shape: [channels(task), ...shape], static: Object.fromEntries(info.static.map((each) => [each, of(each)])) };
      },

      async play(task, { start, shape, parameters, static: fields, dt, steps }) {
        const info = told.tasks[task], grid = info.grids[gridOf(shape)], key = `${task}/${gridOf(shape)}`, points = UPS.product(shape);
        const [begin, step, read] = [program(`${key}/start`, grid.start), program(task, info.step), program(`${key}/read`, grid.read)];
        const beside = info.static.map((name) => tensor(fields[name], shape)), mask = info.static.includes("mask") ? beside.slice(-1) : [];
        const numbers = [...Object.keys(info.parameters).map((name) => number(parameters[name])), ...(info.steady ? [] : [number(dt)])];
        const notes = notesOf(task, info, dt), of = (field, c) => UPS.channel(field, c, points);
        const mean = (field) => field.reduce((sum, v) => sum + v, 0) / points;
        let [history, given] = begin.run([tensor(start, [channels(task), ...shape]), ...beside]), taken = 0;
        return {
          async next() {
            if (taken === (info.steady ? 1 : steps)) return null;
            taken++;
            [history] = step.run([history, given, ...numbers]);
            const now = read.run([history, ...mask])[0].dense().slice();
            const spectrum = { k: [], model: info.channels.map((_, c) => UPS.spectrum(of(now, c), shape)), truth: null };
            spectrum.k = spectrum.model[0].map((_, k) => k);
            const conserved = Object.fromEntries(info.conserved.map((name) => [`mean of ${name}`, [mean(of(now, info.channels.findIndex((each) => each.name === name))), null]]));
            return { time: taken * dt, fields: now, truth: null, spread: null, numbers: { error: null, conserved, spectrum, notes: notes(now, points) } };
          },
          stop() {
            taken = info.steady ? 1 : steps;
          },
        };
      },
    };
  };

  addEventListener("DOMContentLoaded", () => UPS.start(UPS.local(document.getElementById("model").textContent), document.getElementById("ups")));
})();
