// What is seen of a player: the field, painted or as a curve, and the numbers below it.
"use strict";
globalThis.UPS ??= {};
(() => {
  const { h } = UPS;
  const about = (most) => [-(most || 1), most || 1];
  const padded = ([low, high], share) => {
    const room = (high - low || Math.abs(low) || 1) * share;
    return [low - room, high + room];
  };

  function figure(title, canvas, { wide = false, scale = false, key = null } = {}) {
    const value = h("span", { class: "value" });
    const bar = scale ? h("canvas", { class: "bar", "aria-hidden": "true" }) : null;
    const ends = scale ? [h("span", {}), h("span", {})] : [];
    const element = h("figure", { class: wide ? "wide" : null }, h("figcaption", {}, h("b", {}, title), key, value), canvas,
      scale ? h("div", { class: "scale" }, ends[0], bar, ends[1]) : null);
    const paintScale = ([low, high], map) => {
      UPS.scale(bar, map);
      ends[0].textContent = UPS.say(low, 2);
      ends[1].textContent = UPS.say(high, 2);
    };
    return { element, value, paintScale, wide, canvas };
  }

  const field = (label, drawn) => h("canvas", { tabindex: "0", role: "application", "aria-roledescription": drawn ? "drawing area" : "picture", "aria-label": label });

  /** Everything a pointer does on a canvas: drawing where `stroke` is given, sensors and zoom everywhere. */
  function hands(page, canvas, place, stroke) {
    let last = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button) return;
      const here = place(event);
      if (page.tool === "sensor") return page.sense(page.fraction(here));
      if (page.tool === "draw" && !stroke) return;
      canvas.setPointerCapture(event.pointerId);
      canvas.focus({ preventScroll: true });
      event.preventDefault();
      last = page.tool === "zoom" ? [event.clientX, event.clientY] : here;
      if (page.tool === "draw") {
        page.held = true;
        stroke.begin(here);
      }
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!last) return;
      if (page.tool === "zoom") {
        const box = canvas.getBoundingClientRect(), { x, y } = page.view;
        page.pan(((event.clientX - last[0]) / box.width) * (x[1] - x[0]), (-(event.clientY - last[1]) / box.height) * (y[1] - y[0]));
        last = [event.clientX, event.clientY];
        return;
      }
      const here = place(event);
      stroke.go(last, here);
      last = here;
    });
    const end = () => {
      if (last && page.held) {
        page.held = false;
        stroke.end();
      }
      last = null;
    };
    canvas.addEventListener("pointerup", end);
    canvas.addEventListener("pointercancel", end);
    canvas.addEventListener("wheel", (event) => {
      if (page.tool !== "zoom" && !event.ctrlKey) return;
      event.preventDefault();
      page.zoom(event.deltaY < 0 ? 1.15 : 1 / 1.15, page.fraction(place(event)));
    }, { passive: false });
  }

  const zoomKeys = (page, key) => {
    if (key === "+" || key === "=") page.zoom(1.5);
    else if (key === "-") page.zoom(1 / 1.5);
    else if (key === "0") { page.view = { x: [0, 1], y: [0, 1] }; page.draw(); } else return false;
    return true;
  };

  /** The curve of a 1D field (or of a static one, `name`), which is drawn by moving along it. */
  function profile(page, name = null) {
    const { player } = page, { info } = player;
    const canvas = field(name ? `${name}: draw it` : "The field: draw it", true);
    const key = name ? null : h("span", { class: "key" }, h("i", { class: "model" }), "model ", info.solver && player.solver ? h("i", { class: "truth" }) : null, info.solver && player.solver ? "solver" : null);
    const shown = figure(name ?? "Now", canvas, { wide: true, key });
    let frame = null, fixed = null;
    const values = () => (name ? player.static[name] : UPS.channel(player.frame.fields, page.channel, player.points));
    const index = (x) => Math.max(0, Math.min(player.points - 1, Math.floor(((x - info.origin[0]) / info.lengths[0]) * player.points)));
    const edited = () => {
      if (name) player.fork(); else player.edit();
      return values();
    };
    const put = (u, from, to) => {
      const [i, j] = [index(from[0]), index(to[0])], step = Math.sign(j - i) || 1;
      for (let k = i; k !== j + step; k += step) u[k] = i === j ? to[1] : from[1] + ((to[1] - from[1]) * (k - i)) / (j - i);
    };
    hands(page, canvas, (event) => frame.place(event), {
      begin: (here) => { fixed = frame.yrange; put(edited(), here, here); page.draw(); },
      go: (from, here) => { put(values(), from, here); page.draw(); },
      end: () => {
        fixed = null;
        UPS.smooth(values(), player.shape, player.periodic);
        player.ranges[page.channel] = UPS.range(values());
        page.draw();
        if (info.steady) page.solve();
      },
    });
    const draw = () => {
      const n = player.points, x = Float64Array.from({ length: n }, (_, i) => info.origin[0] + ((i + 0.5) / n) * info.lengths[0]);
      const u = values(), lines = [], { truth, spread, numbers } = player.frame, ink = UPS.ink();
      const band = spread && !name ? [u.map((v, i) => v - 2 * UPS.channel(spread, page.channel, n)[i]), u.map((v, i) => v + 2 * UPS.channel(spread, page.channel, n)[i])] : null;
      if (truth && !name) lines.push({ x, y: UPS.channel(truth, page.channel, n), colour: ink.truth, width: 5 });
      lines.push({ x, y: u, colour: ink.model, width: 2.2, band });
      const span = name ? info.spans[name] : player.ranges[page.channel], { origin: [low], lengths: [length] } = info;
      const marks = page.sensors.map(([at], i) => ({ x: low + at * length, y: null, colour: ink.marks[i], text: String(i + 1) }));
      if (document.activeElement === canvas) marks.push({ x: low + page.cursor[0] * length, y: u[index(low + page.cursor[0] * length)], colour: ink.ink, text: "" });
      const yrange = fixed ?? padded(span, player.frames.length === 1 ? 0.25 : 0.1);
      frame = UPS.chart(canvas, { lines, marks, xrange: page.view.x.map((v) => low + v * length), yrange, xlabel: "x", ylabel: name ?? info.channels[page.channel].name });
      shown.value.textContent = numbers?.error == null || name ? "" : `error ${UPS.say(100 * numbers.error, 2)} %`;
    };
    const press = (key) => {
      const side = { ArrowLeft: -1, ArrowRight: 1 }[key], up = { ArrowUp: 1, ArrowDown: -1 }[key];
      if (side) page.cursor[0] = Math.min(1, Math.max(0, page.cursor[0] + side / 64));
      else if (up) {
        const u = edited(), by = ((frame.yrange[1] - frame.yrange[0]) / 30) * up;
        for (let i = 0; i < u.length; i++) {
          let d = Math.abs((i + 0.5) / u.length - page.cursor[0]);
          if (player.periodic[0]) d = Math.min(d, 1 - d);
          u[i] += by * Math.exp(-((d / 0.04) ** 2));
        }
        player.ranges[page.channel] = UPS.union(player.ranges[page.channel], UPS.range(u));
      } else if (key === "Enter") UPS.smooth(edited(), player.shape, player.periodic);
      else if (key === "s") page.sense([...page.cursor]);
      else return zoomKeys(page, key);
      page.draw();
      return true;
    };
    return { ...shown, draw, press };
  }

  /** A 1D field over time. */
  function strip(page, title, pick, range, map) {
    const { player } = page, canvas = field(`${title}, over time`, false), shown = figure(title, canvas, { scale: true });
    hands(page, canvas, (event) => [player.info.origin[0] + UPS.placeIn(canvas, event, page.view)[0] * player.info.lengths[0], 0], null);
    const draw = () => {
      const { frames, points } = player, most = 300, every = Math.max(1, Math.ceil(frames.length / most));
      const rows = [];
      for (let i = 0; i < frames.length; i += every) rows.push(pick(frames[i]));
      const span = range();
      UPS.strip(canvas, rows, points, Math.max(rows.length, Math.min(most, Math.ceil((player.from + player.steps + 1) / every))), span, map(), page.view);
      shown.paintScale(span, map());
    };
    return { ...shown, draw, press: (key) => zoomKeys(page, key) };
  }

  /** A 2D field as colours; painted where `name` is a static field, or the state itself. */
  function picture(page, title, { pick, range, map, paint = null, name = null }) {
    const { player } = page, { info } = player, canvas = field(paint ? `${title}: paint it` : title, Boolean(paint));
    const shown = figure(title, canvas, { scale: true });
    const place = (event) => UPS.placeIn(canvas, event, page.view);
    const dab = (values, at) => {
      const [low, high] = info.spans[name ?? info.channels[page.channel].name];
      UPS.brush(values, player.shape, at, page.size, low + page.value * (high - low), !name, player.periodic);
    };
    const stroke = paint && {
      begin: (here) => { dab(paint(true), here); page.draw(); },
      go: (from, here) => {
        const far = Math.hypot(here[0] - from[0], here[1] - from[1]), count = Math.max(1, Math.ceil(far / (page.size / 2)));
        for (let i = 1; i <= count; i++) dab(paint(false), [0, 1].map((axis) => from[axis] + ((here[axis] - from[axis]) * i) / count));
        page.draw();
        if (info.steady) page.solve();
      },
      end: () => {
        if (!name) player.ranges[page.channel] = UPS.union(player.ranges[page.channel], UPS.range(UPS.channel(player.frame.fields, page.channel, player.points)));
        page.draw();
        if (info.steady) page.solve();
      },
    };
    hands(page, canvas, place, stroke);
    canvas.style.aspectRatio = String(info.lengths[0] / info.lengths[1]);
    const draw = () => {
      const values = pick(player.frame), span = range(), colours = map();
      if (!values) {
        UPS.sized(canvas);
        return;
      }
      const { context: g, width, height } = UPS.map(canvas, values, player.shape, span, colours, page.view);
      shown.paintScale(span, colours);
      const seen = ([u, v]) => [((u - page.view.x[0]) / (page.view.x[1] - page.view.x[0])) * width, (1 - (v - page.view.y[0]) / (page.view.y[1] - page.view.y[0])) * height];
      page.sensors.forEach((at, i) => UPS.mark(g, ...seen(at), UPS.ink().marks[i], String(i + 1), null));
      if (document.activeElement === canvas && paint) {
        const radius = (page.size / (page.view.x[1] - page.view.x[0])) * width;
        for (const [colour, thick] of [["#000", 3], ["#fff", 1.5]]) {
          Object.assign(g, { strokeStyle: colour, lineWidth: thick });
          g.beginPath(); g.arc(...seen(page.cursor), radius, 0, 2 * Math.PI); g.stroke();
        }
      }
      if (title === "Model") {
        const { numbers } = player.frame;
        shown.value.textContent = numbers?.error == null ? "" : `error ${UPS.say(100 * numbers.error, 2)} %`;
      }
    };
    const press = (key) => {
      const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[key];
      if (move) page.cursor = page.cursor.map((v, axis) => Math.min(1, Math.max(0, v + move[axis] / 40)));
      else if (key === "Enter" && stroke) { stroke.begin(page.cursor); stroke.end(); }
      else if (key === "s") page.sense([...page.cursor]);
      else return zoomKeys(page, key);
      page.draw();
      return true;
    };
    return { ...shown, draw, press };
  }

  UPS.views = (page) => {
    const { player } = page, { info } = player, beside = info.solver && player.solver;
    page.fraction = (here) => (info.dimensions > 1 ? here : [(here[0] - info.origin[0]) / info.lengths[0], 0.5]);
    const of = (values) => values && UPS.channel(values, page.channel, player.points);
    const gapOf = ({ fields, truth }) => {
      if (!truth) return null;
      const right = of(truth);
      return of(fields).map((v, i) => v - right[i]);
    };
    const range = () => (page.map === UPS.diverging ? about(Math.max(...player.ranges[page.channel].map(Math.abs))) : player.ranges[page.channel]);
    const map = () => page.map, off = () => UPS.diverging, gap = () => about(player.gap[page.channel]);
    if (info.dimensions === 1) {
      const both = [];
      if (!info.steady) {
        both.push(strip(page, "Model", (frame) => of(frame.fields), range, map));
        if (beside) both.push(strip(page, "Solver", (frame) => of(frame.truth ?? (frame.numbers ? null : frame.fields)), range, map), strip(page, "Model − solver", (frame) => (frame.gap ??= gapOf(frame)), gap, off));
      }
      return [profile(page), ...info.static.map((name) => profile(page, name)), ...both];
    }
    const painted = info.static.map((name) => picture(page, name, {
      name, pick: () => player.static[name], range: () => info.spans[name], map: () => (page.map === "cividis" ? "grey" : "cividis"),
      paint: (first) => { if (first || info.steady) player.fork(); return player.static[name]; },
    }));
    const own = info.steady ? null : (first) => UPS.channel(first ? player.edit() : player.frame.fields, page.channel, player.points);
    const views = [...painted, picture(page, "Model", { pick: (frame) => of(frame.fields), range, map, paint: own })];
    if (beside) {
      views.push(picture(page, "Solver", { pick: (frame) => of(frame.truth ?? (frame.numbers ? null : frame.fields)), range, map }));
      views.push(picture(page, "Model − solver", { pick: gapOf, range: gap, map: off }));
    }
    if (player.members > 1) views.push(picture(page, "Spread of members", { pick: (frame) => of(frame.spread), range: () => (player.frame.spread ? UPS.range(of(player.frame.spread)) : [0, 1]), map }));
    return views;
  };

  /** Error, spectrum, what is conserved, sensors: of every frame so far. */
  UPS.live = (page) => {
    const { player } = page, { info } = player, beside = info.solver && player.solver;
    const chart = (title, draw) => {
      const canvas = h("canvas", { role: "img", "aria-label": title }), shown = figure(title, canvas);
      return { ...shown, draw: () => draw(canvas, shown) };
    };
    const past = () => player.frames.slice(0, player.cursor + 1);
    const spectrum = chart("Energy by wave number", (canvas) => {
      const { numbers } = player.frame, ink = UPS.ink(), lines = [];
      if (numbers?.spectrum) {
        const { k, model, truth } = numbers.spectrum;
        if (truth) lines.push({ x: k, y: truth[page.channel], colour: ink.truth, width: 4 });
        lines.push({ x: k, y: model[page.channel], colour: ink.model });
      }
      const top = Math.max(-30, ...lines.flatMap(({ y }) => y.slice(1)).filter((v) => v > 0).map(Math.log10));
      UPS.chart(canvas, { lines, logx: true, logy: true, quiet: true, xlabel: "k", yrange: lines.length ? [top - 9, top + 0.5] : [-9, 0], xrange: [0, Math.log10(Math.max(10, Math.min(...player.shape) / 2))] });
    });
    const error = beside && !info.steady && chart("Error, nRMSE", (canvas, { value }) => {
      const rows = past().filter(({ numbers }) => numbers?.error != null);
      const y = rows.map((row) => row.numbers.error), now = y.at(-1);
      value.textContent = now == null ? "" : UPS.say(now, 3);
      canvas.setAttribute("aria-label", `Error over time, now ${UPS.say(now, 3)}`);
      UPS.chart(canvas, { lines: [{ x: rows.map(({ time }) => time), y, colour: UPS.ink().model }], logy: true, quiet: true, xlabel: "t", yrange: y.length ? [Math.floor(Math.log10(Math.min(...y)) - 0.2), Math.ceil(Math.log10(Math.max(...y)) + 0.2)] : [-4, 0] });
    });
    const names = () => Object.keys(player.frames.at(-1).numbers?.conserved ?? {});
    const kept = !info.steady && chart("Conserved", (canvas, { value }) => {
      const rows = past().filter(({ numbers }) => numbers), ink = UPS.ink(), lines = [], x = rows.map(({ time }) => time);
      for (const name of names()) {
        const first = rows[0]?.numbers.conserved[name] ?? [0, 0], base = first[1] ?? first[0];
        if (first[1] !== null) lines.push({ x, y: rows.map(({ numbers }) => numbers.conserved[name][1] - base), colour: ink.truth, width: 4 });
        lines.push({ x, y: rows.map(({ numbers }) => numbers.conserved[name][0] - base), colour: ink.model });
      }
      const [low, high] = player.ranges[0], room = 0.01 * (high - low), most = Math.max(room, ...lines.flatMap(({ y }) => y.map(Math.abs)));
      value.textContent = lines.length ? `change of the ${names()[0]}: ${UPS.say(lines.at(-1).y.at(-1), 2)}` : "nothing is said to be conserved";
      UPS.chart(canvas, { lines, quiet: true, xlabel: "t", yrange: [-1.2 * most, 1.2 * most] });
    });
    const sensors = !info.steady && chart("Sensors", (canvas, { value }) => {
      const rows = past(), x = rows.map(({ time }) => time), ink = UPS.ink(), lines = [];
      const cell = ([u, v]) => {
        const [nx, ny = 1] = player.shape, at = (share, n) => Math.min(n - 1, Math.floor(share * n));
        return page.channel * player.points + at(u, nx) * ny + (ny > 1 ? at(v, ny) : 0);
      };
      page.sensors.forEach((at, i) => {
        const p = cell(at);
        lines.push({ x, y: rows.map(({ truth }) => (truth ? truth[p] : NaN)), colour: ink.marks[i], dash: [2, 4], width: 2 }, { x, y: rows.map(({ fields }) => fields[p]), colour: ink.marks[i] });
      });
      value.textContent = page.sensors.length ? "" : "choose Sensor, then click the field";
      UPS.chart(canvas, { lines, quiet: true, xlabel: "t", yrange: lines.length ? undefined : [-1, 1] });
    });
    return [error, spectrum, kept, sensors].filter(Boolean);
  };

  /** What a film shows of a recording: a function from the number of a frame to its pixels. */
  UPS.pictures = (page, recording) => {
    const { player } = page, { info } = player, ink = UPS.ink(), points = player.points, channel = page.channel;
    const of = (values) => UPS.channel(values, channel, points), beside = recording.truth.every(Boolean);
    const flat = info.dimensions > 1, size = 280, panels = flat && beside ? 2 : 1;
    const whole = document.createElement("canvas"), part = document.createElement("canvas");
    Object.assign(whole, { width: flat ? panels * size + (panels + 1) * 12 : 640, height: flat ? 2 * Math.round((size * info.lengths[1]) / info.lengths[0] / 2) + 46 : 396 });
    const g = whole.getContext("2d", { willReadFrequently: true }), span = player.ranges[channel];
    return (i) => {
      g.fillStyle = ink.card;
      g.fillRect(0, 0, whole.width, whole.height);
      g.fillStyle = ink.ink;
      g.font = `600 15px ${ink.sans}`;
      g.textAlign = "left";
      g.fillText(flat ? "Model" : info.title, 14, 22);
      if (panels > 1) g.fillText("Solver", size + 26, 22);
      g.textAlign = "right";
      g.fillText(info.steady ? "" : `t = ${recording.times[i].toFixed(2)}`, whole.width - 14, 22);
      const drawn = [recording.frames[i], ...(beside ? [recording.truth[i]] : [])].map(of);
      if (flat) {
        Object.assign(part, { width: size, height: whole.height - 46 });
        drawn.forEach((values, panel) => {
          UPS.map(part, values, player.shape, span, page.map, UPS.whole, 1);
          g.drawImage(part, 12 + panel * (size + 12), 34);
        });
      } else {
        Object.assign(part, { width: 620, height: 350 });
        const x = Float64Array.from({ length: points }, (_, k) => info.origin[0] + ((k + 0.5) / points) * info.lengths[0]);
        const lines = [...(beside ? [{ x, y: drawn[1], colour: ink.truth, width: 5 }] : []), { x, y: drawn[0], colour: ink.model, width: 2.2 }];
        UPS.chart(part, { lines, xrange: [info.origin[0], info.origin[0] + info.lengths[0]], yrange: padded(span, 0.1), xlabel: "x", ylabel: info.channels[channel].name, ratio: 1 });
        g.drawImage(part, 10, 36);
      }
      return g.getImageData(0, 0, whole.width, whole.height);
    };
  };
})();
