// What is played, without the page around it: the settings, the frames so far, and the one that is seen.
//
// A backend is an object with four methods, of which each gives a promise:
//   describe()  {model: {name}, formats: [...], tasks: {NAME: {title, formula, dimensions, shape, lengths, origin, boundary,
//               channels: [{name, unit}], parameters: {NAME: {low, high, default}}, static: [names],
//               spans: {channel or static field: [low, high]}, steady, dt, leads: [low, high], steps, members,
//               solver, starts: [names], resolutions: [factors]}}}
//   start(task, {name, seed, parameters, shape})  {fields: Float32Array, shape: [channels, ...grid], static: {NAME: Float32Array}}
//   play(task, {start, shape, parameters, static, dt, steps, members, seed, solver})  a session: `await next()` is the
//               next frame, one dt later, or null at the end; `stop()` ends it. A frame is {time (since the start),
//               fields, truth, spread (arrays or null), numbers: {error, conserved: {NAME: [model, truth]},
//               spectrum: {k, model: [channel][k], truth: the same or null}, notes: [sentences]}}
//   download(recording, format)  a Blob, of the `formats` that describe() names beside those that the page makes itself
"use strict";
globalThis.UPS ??= {};

UPS.Player = class {
  constructor(backend, told) {
    Object.assign(this, { backend, told, solver: true, turn: 0, session: null });
  }

  get info() { return this.told.tasks[this.task]; }
  get frame() { return this.frames[this.cursor]; }
  get points() { return UPS.product(this.shape); }
  get periodic() { return this.info.boundary.map((kind) => kind === "periodic"); }
  get atEnd() { return this.cursor === this.frames.length - 1; }

  async choose(task) {
    this.leave();
    this.task = task;
    const { info } = this;
    this.parameters = Object.fromEntries(Object.entries(info.parameters).map(([name, { default: value }]) => [name, value]));
    Object.assign(this, { dt: info.dt, shape: [...info.shape], steps: info.steady ? 1 : Math.max(200, info.steps), members: info.members });
    Object.assign(this, { start: info.starts[0], seed: 0, drawn: false });
    await this.begin();
  }

  /** The start of its name and seed; whatever was played or drawn is gone. */
  async begin() {
    this.leave();
    const { turn } = this;
    const { start: name, seed, parameters, shape } = this;
    const got = await this.backend.start(this.task, { name, seed, parameters, shape });
    if (turn !== this.turn) return;
    this.static = got.static;
    this.drawn = false;
    this.reset(got.fields);
  }

  /** Back to the start; or to another one. */
  reset(fields = this.initial) {
    this.leave();
    this.initial = fields;
    this.frames = [{ time: 0, fields: fields.slice(), truth: null, spread: null, numbers: null }];
    Object.assign(this, { cursor: 0, from: 0, notes: [], ranges: [], gap: [] });
    this.see(this.frame);
  }

  /** Other points for the same start. */
  async resize(factor) {
    const old = this.shape;
    this.shape = this.info.shape.map((n) => Math.round(n * factor));
    if (!this.drawn) return this.begin();
    this.static = Object.fromEntries(Object.entries(this.static).map(([name, values]) => [name, UPS.resampled(values, old, this.shape, this.periodic)]));
    this.reset(UPS.resampled(this.initial, old, this.shape, this.periodic));
  }

  /** Settings have changed: what comes after the frame that is seen is computed anew, with it as the start. */
  fork() {
    this.leave();
    this.frames.length = this.cursor + 1;
    const { time, fields } = this.frame;
    this.frames[this.cursor] = { time, fields: fields.slice(), truth: null, spread: null, numbers: null };
    this.from = this.cursor;
    this.notes = [];
  }

  /** The same, because the field itself is drawn on; at the start, restarting comes back to what was drawn. */
  edit() {
    this.fork();
    this.drawn = true;
    if (this.cursor === 0) this.initial = this.frame.fields;
    return this.frame.fields;
  }

  leave() {
    this.turn++;
    this.session?.stop();
    this.session = null;
  }

  /** One frame on, of those there are or a new one; false at the end. */
  async advance() {
    if (!this.atEnd) {
      this.cursor++;
      return true;
    }
    const { turn } = this;
    if (!this.info.steady && this.frames.length - 1 - this.from >= this.steps) return false;
    if (!this.session) {
      const { shape, parameters, dt, steps, members, seed, solver } = this, start = this.frame.fields;
      const session = await this.backend.play(this.task, { start, shape, parameters, static: this.static, dt, steps, members, seed, solver: solver && this.info.solver });
      if (turn !== this.turn) {
        session.stop();
        return false;
      }
      this.session = session;
    }
    const frame = await this.session?.next();
    if (turn !== this.turn || !frame) return false;
    if (this.info.steady) {
      this.frames = [frame];
      this.leave();
      Object.assign(this, { notes: [], ranges: [], gap: [] });
    } else {
      frame.time += this.frames[this.from].time;
      this.frames.push(frame);
      this.cursor++;
    }
    this.notes.push(...(frame.numbers.notes ?? []));
    this.see(frame);
    return true;
  }

  /** Widen the ranges that colours and axes are for. */
  see({ fields, truth }) {
    for (let c = 0; c < this.info.channels.length; c++) {
      const ours = UPS.channel(fields, c, this.points);
      this.ranges[c] = UPS.union(this.ranges[c], UPS.range(ours));
      if (!truth) continue;
      const right = UPS.channel(truth, c, this.points);
      this.ranges[c] = UPS.union(this.ranges[c], UPS.range(right));
      let most = this.gap[c] ?? 0;
      for (let i = 0; i < right.length; i++) most = Math.max(most, Math.abs(ours[i] - right[i]) || 0);
      this.gap[c] = most;
    }
  }

  /** What is downloaded: everything since the start, or since a setting or the field was last changed. */
  recording() {
    const { info } = this, frames = this.frames.slice(this.from);
    return {
      task: this.task, shape: this.shape, parameters: this.parameters, static: this.static,
      channels: info.channels.map(({ name }) => name), origin: info.origin, lengths: info.lengths,
      times: frames.map(({ time }) => time), frames: frames.map(({ fields }) => fields),
      truth: frames.map(({ truth, numbers, fields }) => truth ?? (numbers ? null : fields)),
    };
  }
};
