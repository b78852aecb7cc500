// Line charts on a canvas: the profile of a 1D field, and the small ones below.
"use strict";
globalThis.UPS ??= {};
(() => {
  /** The canvas at the screen's own resolution; its context in units of CSS pixels. */
  UPS.sized = (canvas, ratio = devicePixelRatio || 1) => {
    const width = canvas.clientWidth || canvas.width, height = canvas.clientHeight || canvas.height;
    const w = Math.max(1, Math.round(width * ratio)), h = Math.max(1, Math.round(height * ratio));
    if (canvas.width !== w || canvas.height !== h) Object.assign(canvas, { width: w, height: h });
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height);
    return { context, width, height };
  };

  function ticks(low, high, about) {
    const raw = (high - low) / Math.max(1, about), size = 10 ** Math.floor(Math.log10(raw));
    const step = size * [1, 2, 5, 10].find((k) => k * size >= raw * 0.999);
    const found = [];
    for (let k = Math.ceil(low / step - 1e-9); k * step <= high + step * 1e-9; k++) found.push(k * step);
    return found.map((v) => [v, String(Number(v.toPrecision(6)))]);
  }

  const SUPER = { "-": "⁻", 0: "⁰", 1: "¹", 2: "²", 3: "³", 4: "⁴", 5: "⁵", 6: "⁶", 7: "⁷", 8: "⁸", 9: "⁹" };

  function powers(low, high, about) {
    const first = Math.ceil(low - 1e-9), last = Math.floor(high + 1e-9), every = Math.max(1, Math.ceil((last - first) / Math.max(1, about)));
    const found = [];
    for (let k = first; k <= last; k += every) {
      found.push([k, k >= 0 && k <= 3 ? String(10 ** k) : `10${[...String(k)].map((c) => SUPER[c]).join("")}`]);
    }
    return found;
  }

  /**
   * Draws lines [{x, y, colour, dash, width, band}] in a frame; returns where it lies, for pointers.
   * `logx` and `logy` take logarithms, what has none is left out; `xrange` and `yrange` fix the ends (of the logarithms).
   */
  UPS.chart = (canvas, { lines, logx, logy, xrange, yrange, xlabel = "", ylabel = "", marks = [], quiet = false, ratio }) => {
    const { context: g, width, height } = UPS.sized(canvas, ratio), ink = UPS.ink();
    const tx = logx ? Math.log10 : (v) => v, ty = logy ? Math.log10 : (v) => v;
    const fit = (pick, t) => {
      let low = Infinity, high = -Infinity;
      for (const line of lines) for (const values of pick(line)) for (const value of values) {
        const v = t(value);
        if (Number.isFinite(v)) { low = Math.min(low, v); high = Math.max(high, v); }
      }
      if (low > high) return [0, 1];
      const room = (high - low) * 0.06 || Math.max(Math.abs(low) * 0.1, 1e-9);
      return [low - room, high + room];
    };
    const [x0, x1] = xrange ?? fit((line) => [line.x], tx);
    const [y0, y1] = yrange ?? fit((line) => [line.y, ...(line.band ?? [])], ty);
    g.font = `${quiet ? 11 : 12}px ${ink.sans}`;
    const yticks = (logy ? powers : ticks)(y0, y1, height / (quiet ? 34 : 48));
    const left = Math.ceil(Math.max(14, ...yticks.map(([, text]) => g.measureText(text).width))) + 10, bottom = 22, top = ylabel ? 20 : 8, right = 10;
    const w = Math.max(10, width - left - right), h = Math.max(10, height - top - bottom);
    const px = (v) => left + ((v - x0) / (x1 - x0)) * w, py = (v) => top + h - ((v - y0) / (y1 - y0)) * h;
    g.lineWidth = 1;
    g.fillStyle = ink.soft;
    g.strokeStyle = ink.line;
    g.textAlign = "right";
    g.textBaseline = "middle";
    for (const [v, text] of yticks) {
      const y = Math.round(py(v)) + 0.5;
      g.beginPath(); g.moveTo(left, y); g.lineTo(left + w, y); g.stroke();
      g.fillText(text, left - 6, y);
    }
    g.textAlign = "center";
    g.textBaseline = "alphabetic";
    for (const [v, text] of (logx ? powers : ticks)(x0, x1, w / (quiet ? 56 : 90))) {
      g.fillText(text, Math.min(width - g.measureText(text).width / 2 - 1, px(v)), height - 6);
    }
    g.textAlign = "left";
    if (ylabel) g.fillText(ylabel, 2, 12);
    g.textAlign = "right";
    if (xlabel) g.fillText(xlabel, width - 2, height - bottom - 5);
    g.save();
    g.beginPath(); g.rect(left, top - 2, w, h + 4); g.clip();
    for (const { x, y, colour, dash = [], width: thick = 1.8, band } of lines) {
      if (band) {
        g.beginPath();
        for (let i = 0; i < x.length; i++) g.lineTo(px(tx(x[i])), py(ty(band[1][i])));
        for (let i = x.length - 1; i >= 0; i--) g.lineTo(px(tx(x[i])), py(ty(band[0][i])));
        g.fillStyle = ink.band;
        g.fill();
      }
      g.beginPath();
      let pen = false;
      for (let i = 0; i < x.length; i++) {
        const a = tx(x[i]), b = ty(y[i]);
        if (!Number.isFinite(a) || !Number.isFinite(b)) { pen = false; continue; }
        if (pen) g.lineTo(px(a), py(b)); else g.moveTo(px(a), py(b));
        pen = true;
      }
      Object.assign(g, { strokeStyle: colour, lineWidth: thick, lineJoin: "round", lineCap: "round" });
      g.setLineDash(dash);
      g.stroke();
      g.setLineDash([]);
    }
    for (const { x, y, colour, text } of marks) UPS.mark(g, px(x), y === null ? top + 10 : py(y), colour, text, y === null ? [top, top + h] : null);
    g.restore();
    const place = (event) => {
      const box = canvas.getBoundingClientRect();
      return [x0 + ((event.clientX - box.left - left) / w) * (x1 - x0), y0 + ((top + h - (event.clientY - box.top)) / h) * (y1 - y0)];
    };
    return { place, px, py, xrange: [x0, x1], yrange: [y0, y1] };
  };

  /** A numbered sensor, with a line along the whole height where there is one. */
  UPS.mark = (g, x, y, colour, text, line) => {
    if (line) {
      Object.assign(g, { strokeStyle: colour, lineWidth: 1.2 });
      g.setLineDash([2, 3]);
      g.beginPath(); g.moveTo(x, line[0]); g.lineTo(x, line[1]); g.stroke();
      g.setLineDash([]);
    }
    g.beginPath(); g.arc(x, y, 8, 0, 2 * Math.PI);
    g.fillStyle = colour;
    g.fill();
    Object.assign(g, { strokeStyle: "#fff", lineWidth: 1.5 });
    g.stroke();
    g.fillStyle = "#fff";
    g.font = `600 10px ${UPS.ink().sans}`;
    g.textAlign = "center";
    g.textBaseline = "middle";
    g.fillText(text, x, y + 0.5);
  };
})();
