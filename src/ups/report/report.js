"use strict";
// Players for the embedded fields, and the copy buttons. No library, no network.

const BROKEN = 65535, BELOW = 0, ABOVE = 65534, STEPS = 65532; // as in animation.py
const MOST_COLUMNS = 7; // of 2D panels in a row
const TRANSIENT_RATE = 10, STEADY_RATE = 1; // frames a second at speed 1

function bytes(base64) {
  const text = atob(base64), out = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) out[i] = text.charCodeAt(i);
  return out;
}

function unpack(base64, [low, high]) {
  const raw = bytes(base64), view = new DataView(raw.buffer), out = new Float32Array(raw.length / 2);
  for (let i = 0; i < out.length; i++) {
    const q = view.getUint16(2 * i, true);
    out[i] = q === BROKEN ? NaN : q === BELOW ? -Infinity : q === ABOVE ? Infinity : low + ((q - 1) / STEPS) * (high - low);
  }
  return out;
}

function short(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e-3 && size < 1e4) return String(Number(value.toPrecision(3))).replace("-", "−");
  const [mantissa, power] = value.toExponential(1).split("e");
  return `${mantissa.replace("-", "−")}·10${[...power.replace("+", "")].map((c) => (c === "-" ? "⁻" : "⁰¹²³⁴⁵⁶⁷⁸⁹"[c])).join("")}`;
}

function ticks(low, high, count) {
  const raw = (high - low) / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const out = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-9; v += step) out.push(Math.abs(v) < step * 1e-9 ? 0 : v);
  return out;
}

function fitted(canvas) { // the drawing context in CSS pixels, sharp on any screen
  const scale = window.devicePixelRatio || 1, width = canvas.clientWidth, height = canvas.clientHeight;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
  }
  const pen = canvas.getContext("2d");
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, width, height);
  return [pen, width, height];
}

// A framed plot of y over x in the box; returns the map from data to pixels.
function frame(pen, box, xs, low, high, label, xlabel) {
  const px = (x) => box.left + ((x - xs[0]) / (xs[xs.length - 1] - xs[0] || 1)) * box.width;
  const py = (y) => box.top + ((high - y) / (high - low)) * box.height;
  pen.font = "12px system-ui, sans-serif";
  pen.lineWidth = 1;
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  for (const y of ticks(low, high, Math.max(3, box.height / 36))) {
    pen.strokeStyle = "#e6e6e6";
    pen.beginPath(); pen.moveTo(box.left, py(y)); pen.lineTo(box.left + box.width, py(y)); pen.stroke();
    pen.fillStyle = "#555";
    pen.fillText(short(y), box.left - 6, py(y));
  }
  pen.textBaseline = "top";
  pen.textAlign = "center";
  if (xlabel) for (const x of ticks(xs[0], xs[xs.length - 1], Math.max(2, box.width / 90))) pen.fillText(short(x), px(x), box.top + box.height + 5);
  if (xlabel) pen.fillText(xlabel, box.left + box.width / 2, box.top + box.height + 18);
  pen.save();
  pen.translate(12, box.top + box.height / 2);
  pen.rotate(-Math.PI / 2);
  pen.fillText(label, 0, -6);
  pen.restore();
  return [px, py];
}

function curve(pen, box, xs, ys, [px, py], model) { // broken where the values are not numbers
  pen.save();
  pen.beginPath(); pen.rect(box.left, box.top - 1, box.width, box.height + 2); pen.clip();
  pen.strokeStyle = model.colour;
  pen.lineWidth = model.width;
  pen.lineJoin = "round";
  pen.setLineDash(model.dash.map((d) => d * model.width));
  pen.beginPath();
  let down = false;
  for (let i = 0; i < xs.length; i++) {
    if (Number.isNaN(ys[i])) { down = false; continue; }
    const y = Math.min(1e4, Math.max(-1e4, py(ys[i]))); // a canvas ignores infinities: far outside will do
    if (down) pen.lineTo(px(xs[i]), y); else pen.moveTo(px(xs[i]), y);
    down = true;
  }
  pen.stroke();
  pen.restore();
}

function paint(canvas, values, [nx, ny], low, high, table, bad) { // x to the right, y upwards
  canvas.width = nx;
  canvas.height = ny;
  const pen = canvas.getContext("2d"), image = pen.createImageData(nx, ny);
  for (let x = 0; x < nx; x++) for (let y = 0; y < ny; y++) {
    const v = values[x * ny + y], at = 4 * ((ny - 1 - y) * nx + x);
    const i = 3 * Math.min(255, Math.max(0, Math.round(((v - low) / (high - low)) * 255)));
    for (let c = 0; c < 3; c++) image.data[at + c] = Number.isNaN(v) ? bad[c] : table[i + c];
    image.data[at + 3] = 255;
  }
  pen.putImageData(image, 0, 0);
}

class Player {
  constructor(root, data, colours) {
    Object.assign(this, { root, data, colours, frame: 0, sequence: 0, channel: 0, playing: false, hidden: new Set() });
    this.find = (name) => root.querySelector(`[data-part="${name}"]`);
    this.cache = new Map();
    this.slider = this.find("slider");
    this.button = this.find("play");
    this.speed = this.find("speed");
    this.stage = this.find("stage");
    this.buildLegend();
    if (data.dimension === 2) this.buildPanels();
    else this.canvas = this.stage.appendChild(Object.assign(document.createElement("canvas"), { className: "lines" }));
    this.wire();
    if (!data.steady) this.frame = data.sequences[0].frames.length - 1; // where the models differ most
    this.chooseSequence(0);
  }

  get range() { return this.data.sequences[this.sequence].ranges[this.channel]; }

  get length() { return this.data.sequences[this.sequence].frames.length; }

  values(name) { // the chosen frame of a model's field, unpacked when first asked for
    const key = `${this.sequence}/${this.channel}/${name}`;
    if (!this.cache.has(key)) {
      const packed = this.data.sequences[this.sequence].fields[name][this.channel];
      this.cache.set(key, unpack(packed, this.range.packing));
    }
    return this.cut(this.cache.get(key));
  }

  cut(all) {
    const size = this.data.axes.reduce((product, axis) => product * axis.length, 1);
    return all.subarray(this.frame * size, (this.frame + 1) * size);
  }

  error(name) {
    const prediction = this.values(name), truth = this.values("truth");
    return prediction.map((v, i) => v - truth[i]);
  }

  buildLegend() {
    this.readout = new Map();
    for (const model of this.data.predictors) {
      const line = this.data.dimension === 1;
      const entry = document.createElement(line ? "label" : "span");
      if (line) {
        const box = Object.assign(document.createElement("input"), { type: "checkbox", checked: true });
        box.addEventListener("change", () => { this.hidden[box.checked ? "delete" : "add"](model.name); this.draw(); });
        entry.append(box);
      } else if (model.name === "truth") continue;
      const dash = model.dash.map((d) => d * model.width).join(" ");
      entry.insertAdjacentHTML("beforeend", `<svg aria-hidden="true" viewBox="0 0 30 10"><path d="M0 5H30" stroke="${model.colour}" stroke-width="${model.width + 0.6}" stroke-dasharray="${dash}"/></svg>`);
      entry.append(model.display);
      if (model.name !== "truth") this.readout.set(model.name, entry.appendChild(document.createElement("b")));
      this.find("legend").append(entry);
    }
  }

  buildPanels() { // a column for each static field, the truth (over the scales) and every predictor (over its error)
    const { axes: [x, y], statics, masked } = this.data, { field, error } = this.colours;
    const bad = masked ? this.colours.outside : this.colours.bad; // a cell that has no number lies outside the domain
    const shown = this.data.predictors.filter((model) => model.picture);
    const shape = [x.length, y.length], aspect = (x[x.length - 1] - x[0]) / (y[y.length - 1] - y[0]);
    const panels = this.stage.appendChild(Object.assign(document.createElement("div"), { className: "panels" }));
    const cells = statics.length + shown.length;
    panels.style.setProperty("--columns", String(Math.ceil(cells / Math.ceil(cells / MOST_COLUMNS)))); // rows of equal length
    this.panels = [];
    const column = () => panels.appendChild(Object.assign(document.createElement("div"), { className: "panel" }));
    const add = (box, title, colour, draw) => {
      const name = box.appendChild(Object.assign(document.createElement("span"), { textContent: title }));
      name.style.color = colour;
      const canvas = box.appendChild(document.createElement("canvas"));
      canvas.style.aspectRatio = String(aspect);
      this.panels.push(() => draw(canvas));
    };
    for (const item of statics) {
      const box = column(), all = unpack(item.frames, item.packing);
      add(box, item.name, "#333", (canvas) => paint(canvas, this.cut(all), shape, item.low, item.high, field, bad));
      this.bar(box, field, () => [item.name, item.low, item.high]);
    }
    for (const m of shown) {
      const box = column();
      add(box, m.display, m.colour, (c) => paint(c, this.values(m.name), shape, this.range.low, this.range.high, field, bad));
      if (m.name === "truth") {
        this.bar(box, field, () => [this.data.channels[this.channel], this.range.low, this.range.high]);
        this.bar(box, error, () => ["error", -this.range.error, this.range.error]);
      } else
        add(box, `${m.display} − truth`, m.colour, (c) => paint(c, this.error(m.name), shape, -this.range.error, this.range.error, error, bad));
    }
  }

  bar(parent, table, ends) { // a colour scale with its name and ends
    const box = parent.appendChild(Object.assign(document.createElement("div"), { className: "bar" }));
    const canvas = document.createElement("canvas"), row = document.createElement("div");
    const [name, low, high] = [0, 1, 2].map(() => document.createElement("span"));
    row.append(low, high);
    box.append(name, canvas, row);
    paint(canvas, Float32Array.from({ length: 256 }, (_, i) => i / 255), [256, 1], 0, 1, table, [0, 0, 0]);
    this.panels.push(() => [name, low, high].forEach((place, i) => {
      const value = ends()[i];
      place.textContent = i === 0 ? value : short(value);
    }));
  }

  wire() {
    this.button.addEventListener("click", () => this.toggle());
    this.slider.addEventListener("input", () => { this.pause(); this.show(Number(this.slider.value)); });
    this.find("sample")?.addEventListener("change", (event) => this.chooseSequence(event.target.selectedIndex));
    this.find("channel")?.addEventListener("change", (event) => { this.channel = event.target.selectedIndex; this.choosePicture(); this.draw(); });
    this.root.addEventListener("keydown", (event) => {
      if (event.target !== this.root) return; // the slider and buttons have keys of their own
      const go = { ArrowRight: this.frame + 1, ArrowLeft: this.frame - 1, Home: 0, End: this.length - 1 }[event.key];
      if (event.key === " ") this.toggle();
      else if (go !== undefined) { this.pause(); this.show(Math.min(this.length - 1, Math.max(0, go))); }
      else return;
      event.preventDefault();
    });
    new ResizeObserver(() => this.draw()).observe(this.stage);
  }

  chooseSequence(index) {
    this.sequence = index;
    this.cache.clear();
    this.slider.max = String(this.length - 1);
    this.choosePicture();
    this.show(Math.min(this.frame, this.length - 1));
  }

  choosePicture() { // the still pictures of the task follow the chooser, where one was drawn for the choice
    const all = [...this.root.closest("section").querySelectorAll("figure[data-sample]")];
    const chosen = (f) => Number(f.dataset.sample) === this.sequence && Number(f.dataset.channel) === this.channel;
    if (all.some(chosen)) for (const f of all) f.hidden = !chosen(f);
  }

  toggle() { if (this.playing) this.pause(); else this.play(); }

  play() {
    this.playing = true;
    this.button.textContent = "❚❚ Pause";
    if (this.frame === this.length - 1) this.show(0);
    let last = performance.now(), due = 0;
    const tick = (now) => {
      if (!this.playing) return;
      due += ((now - last) / 1000) * Number(this.speed.value) * (this.data.steady ? STEADY_RATE : TRANSIENT_RATE);
      last = now;
      if (due >= 1) {
        const next = this.frame + Math.floor(due);
        due %= 1;
        this.show(next < this.length ? next : this.frame < this.length - 1 ? this.length - 1 : 0);
      }
      requestAnimationFrame(tick);
    };
    requestAnimationFrame(tick);
  }

  pause() {
    this.playing = false;
    this.button.textContent = "▶ Play";
  }

  show(frame) {
    this.frame = frame;
    const sequence = this.data.sequences[this.sequence], label = sequence.frames[frame];
    this.slider.value = String(frame);
    this.slider.setAttribute("aria-valuetext", label);
    this.find("time").textContent = label;
    this.draw();
  }

  draw() {
    const sequence = this.data.sequences[this.sequence];
    for (const [name, place] of this.readout) {
      const value = sequence.nrmse[name][this.frame][this.channel];
      place.textContent = value === null ? "not finite" : short(value);
      place.classList.toggle("bad", value === null);
    }
    if (this.data.dimension === 2) for (const panel of this.panels) panel();
    else this.drawLines();
  }

  drawLines() {
    const [pen, width, height] = fitted(this.canvas), xs = this.data.axes[0], range = this.range;
    const margin = 0.08 * (range.high - range.low), left = 62, inner = width - left - 14;
    const upper = { left, top: 10, width: inner, height: height * 0.6 - 16 };
    const lower = { left, top: height * 0.6 + 8, width: inner, height: height * 0.4 - 46 };
    const above = frame(pen, upper, xs, range.low - margin, range.high + margin, this.data.channels[this.channel], "");
    const below = frame(pen, lower, xs, -1.1 * range.error, 1.1 * range.error, "error", "x");
    const visible = this.data.predictors.filter((model) => !this.hidden.has(model.name));
    for (const model of visible) curve(pen, upper, xs, this.values(model.name), above, model);
    for (const model of visible) if (model.name !== "truth" && model.picture) curve(pen, lower, xs, this.error(model.name), below, model);
  }
}

function copyText(button) {
  const text = document.getElementById(button.dataset.copy).textContent;
  const done = () => { button.textContent = "Copied"; setTimeout(() => { button.textContent = "Copy"; }, 1500); };
  const byHand = () => { // pages opened from disk may have no clipboard interface
    const area = document.body.appendChild(Object.assign(document.createElement("textarea"), { value: text }));
    area.select();
    if (document.execCommand("copy")) done();
    area.remove();
  };
  if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, byHand); else byHand();
}

document.addEventListener("DOMContentLoaded", () => {
  const json = (id) => JSON.parse(document.getElementById(id).textContent);
  const tables = json("colour-tables");
  const rgb = (text) => [1, 3, 5].map((i) => parseInt(text.slice(i, i + 2), 16));
  const colours = { field: bytes(tables.field), error: bytes(tables.error), bad: rgb(tables.bad), outside: rgb(tables.outside) };
  for (const root of document.querySelectorAll(".player")) new Player(root, json(root.dataset.source), colours);
  for (const button of document.querySelectorAll("[data-copy]")) button.addEventListener("click", () => copyText(button));
});
