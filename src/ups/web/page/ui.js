// The page around a player: what is seen, and what hands do.
"use strict";
globalThis.UPS ??= {};
(() => {
  const { h } = UPS;
  const STARTS = { random: "As in training", wave: "Wave", bump: "Bump", box: "Box", noise: "Smooth noise", flat: "Flat" };
  const TOOLS = [["draw", "Draw"], ["sensor", "Sensor"], ["zoom", "Zoom"]];
  const MOST_SENSORS = 6;

  UPS.start = async (backend, root) => {
    root.replaceChildren(h("p", { class: "wait", role: "status" }, "Loading the model …"));
    try {
      const told = await backend.describe();
      if (!Object.keys(told.tasks).length) throw new Error("this model has no task in one or two dimensions to play with");
      const page = new Page(new UPS.Player(backend, told), root);
      await page.choose(Object.keys(told.tasks)[0]);
      return (UPS.page = page);
    } catch (error) {
      root.replaceChildren(h("p", { class: "wait", role: "alert" }, `The playground cannot start: ${error.message}.`));
      throw error;
    }
  };

  class Page {
    constructor(player, root) {
      Object.assign(this, { player, root, playing: false, channel: 0, tool: "draw", sensors: [], rate: 30, size: 0.06, value: 1, map: "viridis", speed: 0 });
      this.view = { x: [0, 1], y: [0, 1] };
      this.status = h("p", { class: "status", role: "status" });
      this.work = h("div", { class: "work" });
      const tasks = Object.entries(player.told.tasks).map(([name, { title }]) => [name, title]);
      root.replaceChildren(
        h("header", { class: "top" },
          h("div", { class: "brand" }, h("p", { class: "overline" }, "Playground of a learned simulator"), h("h1", {}, player.told.model.name)),
          tasks.length > 1 ? UPS.choice("Task", tasks, tasks[0][0], (task) => this.choose(task), { hidden: true }) : null),
        this.work);
      addEventListener("resize", () => this.draw());
      matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => requestAnimationFrame(() => this.draw()));
      addEventListener("keydown", (event) => this.key(event));
    }

    say(text, wrong = false) {
      this.status.textContent = text;
      this.status.classList.toggle("wrong", wrong);
    }

    /** Runs what may fail for a reason that people can be told. */
    async attempt(work) {
      try {
        return await work();
      } catch (error) {
        this.playing = false;
        this.signs();
        this.say(error.message, true);
      }
    }

    async choose(task) {
      this.pause();
      await this.attempt(async () => {
        await this.player.choose(task);
        Object.assign(this, { channel: 0, sensors: [], view: { x: [0, 1], y: [0, 1] }, cursor: [0.5, 0.5] });
        this.tool = "draw";
        this.build();
        this.begun();
      });
    }

    /** There is a new start: solve it if that is all there is to it. */
    begun() {
      const { info, frame } = this.player, [low, high] = UPS.range(frame.fields);
      this.say(info.steady || low < high || info.channels.length > 1 ? "" : "Nothing is drawn yet: draw on the field, or begin with another");
      this.draw();
      if (info.steady) this.solve();
    }

    /** A steady task is solved whenever something changes, as fast as it can be. */
    async solve() {
      if (this.solving) {
        this.again = true;
        return;
      }
      this.solving = true;
      do {
        this.again = false;
        await this.attempt(() => this.player.advance());
        this.draw();
      } while (this.again);
      this.solving = false;
    }

    // ---- playing

    async play() {
      if (this.player.info.steady) return this.solve();
      if (this.playing) return;
      if (this.player.atEnd && this.player.frames.length - 1 - this.player.from >= this.player.steps) this.player.reset();
      this.playing = true;
      this.signs();
      this.say("Playing");
      let due = performance.now(), last = due;
      while (this.playing) {
        const on = await this.attempt(() => (this.held ? "held" : this.player.advance()));
        if (!this.playing) { // the frame that was on its way
          if (on) this.rest("Paused");
          break;
        }
        if (!on) {
          if (this.player.session || this.player.frames.length - 1 - this.player.from >= this.player.steps) this.pause("The end");
          continue;
        }
        due = Math.max(due + 1000 / this.rate, performance.now() - 100);
        do await new Promise(requestAnimationFrame); while (performance.now() < due - 8);
        const now = performance.now();
        this.speed += 0.1 * (1000 / Math.max(1, now - last) - this.speed);
        last = now;
        this.draw();
      }
    }

    pause(why = "Paused") {
      if (!this.playing) return;
      this.playing = false;
      this.signs();
      this.rest(why);
    }

    rest(why) {
      const { time, numbers } = this.player.frame;
      this.say(`${why} at t = ${UPS.say(time)}${numbers?.error == null ? "" : `, error ${UPS.say(100 * numbers.error, 2)} %`}`);
      this.draw();
    }

    toggle() { return this.playing ? this.pause() : this.play(); }

    async step() {
      this.pause();
      if (!this.stepping) {
        this.stepping = true;
        const on = await this.attempt(() => this.player.advance());
        this.stepping = false;
        if (on === false) this.say("The end; restart, or allow more steps");
        this.draw();
      }
    }

    restart() {
      this.player.reset();
      this.begun();
    }

    /** A setting is another: go on from here with it. */
    changed() {
      this.player.fork();
      this.draw();
      if (this.player.info.steady) this.solve();
    }

    signs() {
      if (!this.button) return;
      this.button.replaceChildren(UPS.icon(this.playing ? "pause" : "play"));
      this.button.setAttribute("aria-label", this.playing ? "Pause" : "Play");
      this.button.title = `${this.playing ? "Pause" : "Play"} (space)`;
    }

    // ---- what is on the page

    build() {
      const { player } = this, { info } = player;
      this.views = UPS.views(this);
      this.live = UPS.live(this);
      this.clock = h("output", { class: "clock" });
      this.button = UPS.button("Play", () => this.toggle(), { sign: "play", kind: "round main" });
      this.scrub = h("input", { type: "range", min: 0, max: 1, value: 0, "aria-label": "Time", input: () => {
        this.pause();
        player.cursor = Number(this.scrub.value);
        this.draw();
      } });
      const transport = info.steady
        ? h("div", { class: "transport" }, h("p", { class: "soft" }, "Steady: solved again whenever you paint."))
        : h("div", { class: "transport", role: "group", "aria-label": "Playing" },
          UPS.button("Restart", () => this.restart(), { sign: "restart", kind: "round", hint: "Restart (R)" }), this.button,
          UPS.button("Step", () => this.step(), { sign: "step", kind: "round", hint: "Step (.)" }), this.scrub, this.clock);
      this.warnings = h("ul", { class: "notes" });
      const channels = info.channels.map(({ name, unit }, i) => [String(i), unit ? `${name} [${unit}]` : name]);
      const stage = h("section", { class: "stage", "aria-label": "The field" },
        h("div", { class: "title" }, h("div", {}, h("h2", {}, info.title), h("p", { class: "formula" }, info.formula)),
          channels.length > 1 ? UPS.choice("Channel", channels, "0", (i) => { this.channel = Number(i); this.draw(); }, { hidden: true }) : null),
        UPS.tools(this), h("div", { class: `views d${info.dimensions} n${this.views.filter((view) => !view.wide).length}` }, ...this.views.map((view) => view.element)),
        transport, this.status, this.warnings);
      const live = h("section", { class: "live", "aria-label": "Live numbers" }, ...this.live.map((each) => each.element));
      this.work.replaceChildren(h("div", { class: "left" }, stage, live), UPS.settings(this));
      this.work.dataset.tool = this.tool;
      this.signs();
    }

    draw() {
      const { player } = this;
      if (!player.frames || !this.views) return;
      const { time } = player.frame;
      for (const view of this.views) view.draw();
      for (const each of this.live) each.draw();
      this.scrub.max = Math.max(1, player.frames.length - 1);
      this.scrub.value = player.cursor;
      this.scrub.setAttribute("aria-valuetext", `t = ${UPS.say(time)}`);
      this.clock.textContent = `t = ${time.toFixed(Math.max(0, Math.min(4, 2 - Math.floor(Math.log10(player.dt || 1)) - 1)))}`;
      if (this.warnings.childElementCount !== player.notes.length) {
        this.warnings.replaceChildren(...player.notes.slice(-3).map((note) => h("li", {}, note)));
      }
    }

    // ---- hands

    key(event) {
      if (event.ctrlKey || event.metaKey || event.altKey || /^(input|select|textarea|button|summary)$/i.test(event.target.tagName)) return;
      const canvas = event.target.tagName === "CANVAS" ? event.target : null;
      const view = canvas && this.views?.find((each) => each.canvas === canvas);
      const done = view?.press(event.key) || { " ": () => (this.toggle(), true), ".": () => (this.step(), true), r: () => (this.restart(), true) }[event.key]?.();
      if (done) event.preventDefault();
    }

    zoom(factor, [u, v] = [(this.view.x[0] + this.view.x[1]) / 2, (this.view.y[0] + this.view.y[1]) / 2]) {
      const about = ([a, b], c) => {
        const length = Math.min(1, Math.max(0.02, (b - a) / factor)), low = c - ((c - a) * length) / (b - a);
        const first = Math.min(1 - length, Math.max(0, low));
        return [first, first + length];
      };
      this.view = { x: about(this.view.x, u), y: about(this.view.y, v) };
      this.draw();
    }

    pan(du, dv) {
      const moved = ([a, b], by) => {
        const first = Math.min(1 - (b - a), Math.max(0, a - by));
        return [first, first + b - a];
      };
      this.view = { x: moved(this.view.x, du), y: moved(this.view.y, dv) };
      this.draw();
    }

    sense(place) {
      const near = this.sensors.findIndex(([u, v]) => Math.hypot(u - place[0], this.player.info.dimensions > 1 ? v - place[1] : 0) < 0.03);
      if (near >= 0) this.sensors.splice(near, 1);
      else if (this.sensors.length < MOST_SENSORS) this.sensors.push(place);
      this.say(near >= 0 ? "A sensor is gone" : `${this.sensors.length} of ${MOST_SENSORS} sensors`);
      this.draw();
    }

    // ---- files

    async download(kind) {
      const { player } = this, recording = player.recording(), name = `${recording.task}.${{ pdebench: "pdebench.hdf5", well: "well.hdf5" }[kind] ?? kind}`;
      this.pause();
      this.say(`Writing ${name} …`);
      await this.attempt(async () => {
        if (!player.info.steady && recording.frames.length < 2) throw new Error("there is nothing to download yet; play first");
        const film = () => [recording.frames.length, UPS.pictures(this, recording), 1000 / Math.min(25, this.rate), (share) => this.say(`Writing ${name}: ${Math.round(100 * share)} %`)];
        const blob = await (kind === "npz" ? UPS.npz(recording) : kind === "gif" ? UPS.gif(...film()) : kind === "mp4" ? UPS.mp4(...film()) : player.backend.download(recording, kind));
        const link = h("a", { href: URL.createObjectURL(blob), download: name });
        link.click();
        setTimeout(() => URL.revokeObjectURL(link.href), 10000);
        this.say(`${name}: ${UPS.say(blob.size / 1e6, 2)} MB, ${recording.frames.length} frames`);
      });
    }
  }

  /** The settings beside the field. */
  UPS.settings = (page) => {
    const { player } = page, { info } = player;
    const begin = () => {
      page.pause();
      return page.attempt(async () => { await player.begin(); page.begun(); });
    };
    const start = UPS.select("Begin with", info.starts.map((name) => [name, STARTS[name] ?? name]), player.start, (name) => { player.start = name; begin(); });
    start.append(UPS.button("Another one", () => { player.seed = (player.seed * 7 + 1) % 65521; begin(); }, { sign: "dice", kind: "round", hint: "Another one of the kind" }));
    const parameters = Object.entries(info.parameters).map(([name, { low, high, default: value }]) =>
      UPS.slider(name, { low, high, value, hint: `trained from ${UPS.say(low)} to ${UPS.say(high)}` }, (v) => { player.parameters[name] = v; page.changed(); }));
    const points = UPS.select("Points", info.resolutions.map((factor) => [String(factor), info.shape.map((n) => Math.round(n * factor)).join(" × ")]), "1",
      (factor) => { page.pause(); page.attempt(async () => { await player.resize(Number(factor)); page.begun(); }); });
    const [least, most] = info.leads.length ? info.leads : [0, 0];
    const time = info.steady ? [] : [
      UPS.slider("Step dt", { low: least / 2, high: most * 2, value: player.dt, hint: `trained ${least === most ? "at" : `from ${UPS.say(least)} to`} ${UPS.say(most)}` }, (v) => { player.dt = v; page.changed(); }),
      UPS.slider("Steps", { low: 20, high: 1000, step: 20, value: player.steps }, (v) => { player.steps = v; page.changed(); }),
      UPS.slider("Frames a second", { low: 2, high: 60, step: 1, value: page.rate }, (v) => { page.rate = v; }),
    ];
    const compare = [
      info.solver
        ? UPS.tick("Solve the equation beside it", player.solver, (on) => { player.solver = on; page.changed(); page.build(); page.draw(); })
        : h("p", { class: "soft" }, player.told.model.alone ? "This file holds the model alone; `ups serve` sets the solver beside it." : "There is no solver for this task to compare with."),
      info.members > 1 ? UPS.slider("Members", { low: 1, high: info.members, step: 1, value: player.members }, (v) => { player.members = v; page.changed(); }) : null,
    ];
    const maps = UPS.select("Colours", UPS.maps.map((name) => [name, name]), page.map, (name) => { page.map = name; page.draw(); });
    const files = [["npz", "NumPy"], ["nc", "netCDF"], ["pdebench", "PDEBench"], ["well", "The Well"], ["gif", "GIF"], ["mp4", "MP4"]]
      .filter(([kind]) => ["npz", "gif"].includes(kind) || player.told.formats.includes(kind) || (kind === "mp4" && UPS.hasMP4()))
      .map(([kind, text]) => UPS.button(text, () => page.download(kind), { kind: "small" }));
    return h("aside", { class: "panel", "aria-label": "Settings" },
      UPS.group("Start", start),
      parameters.length ? UPS.group("Parameters", ...parameters) : null,
      UPS.group("Beside the model", ...compare),
      UPS.group(info.steady ? "Grid" : "Time and grid", ...time, points),
      UPS.group("Look", maps),
      UPS.group("Download", h("div", { class: "files" }, ...files),
        h("small", {}, `${info.steady ? "" : "From the last change of a setting or of the field. "}${UPS.hasMP4() ? "" : "This browser has no MP4 encoder: films are GIFs."}`)),
      h("details", { class: "group keys" }, h("summary", {}, "Keys"),
        h("dl", {}, ...[["space", "play, pause"], [".", "one step"], ["R", "restart"], ["Tab", "to the field; then:"], ["← → ↑ ↓", info.dimensions > 1 ? "move the brush" : "along the curve; raise, lower it"],
          ["Enter", info.dimensions > 1 ? "paint" : "smooth the curve"], ["S", "a sensor here"], ["+ − 0", "zoom in, out, all"]].flatMap(([key, what]) => [h("dt", {}, key), h("dd", {}, what)]))));
  };

  /** What a pointer does on the field. */
  UPS.tools = (page) => {
    const { info } = page.player, painted = info.dimensions > 1;
    const names = painted ? info.static : [];
    const [low, high] = info.spans[names[0]] ?? [0, 1], one = info.steady && names.length === 1;
    page.value = 1;
    const brush = painted ? [
      UPS.slider("Size", { low: 0.02, high: 0.2, value: page.size, say: (v) => `${Math.round(100 * v)} %` }, (v) => { page.size = v; }),
      // of the lowest to the highest value of whatever is painted
      UPS.slider("Paint", { low: 0, high: 1, value: 1, say: (v) => (one ? UPS.say(low + v * (high - low), 2) : `${Math.round(100 * v)} %`) }, (v) => { page.value = v; }),
    ] : [];
    return h("div", { class: "tools" },
      UPS.choice("The pointer", TOOLS, page.tool, (tool) => { page.tool = tool; page.work.dataset.tool = tool; }, { hidden: true }),
      ...brush,
      h("div", { class: "zooms", role: "group", "aria-label": "Zoom" }, ...[["−", "Zoom out", 1 / 1.5], ["+", "Zoom in", 1.5], ["Fit", "See all", 0]].map(([sign, name, factor]) =>
        h("button", { type: "button", class: "small", "aria-label": name, title: name, click: () => {
          if (factor) page.zoom(factor);
          else { page.view = { x: [0, 1], y: [0, 1] }; page.draw(); }
        } }, sign))),
      UPS.button("Smooth", () => {
        const fields = page.player.edit(), { points, shape, periodic } = page.player;
        for (let i = 0; i < 4; i++) UPS.smooth(UPS.channel(fields, page.channel, points), shape, periodic);
        page.draw();
      }, { kind: `small${info.steady ? " gone" : ""}` }));
  };
})();
