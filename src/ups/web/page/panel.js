// Pieces of the page: elements, switches, sliders, figures.
"use strict";
globalThis.UPS ??= {};
(() => {
  let count = 0;

  /** An element with attributes (functions are listeners) and children. */
  const h = (tag, given = {}, ...children) => {
    const element = document.createElement(tag);
    for (const [name, value] of Object.entries(given)) {
      if (typeof value === "function") element.addEventListener(name, value);
      else if (value === true) element.setAttribute(name, "");
      else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
    }
    element.append(...children.filter((child) => child !== null && child !== undefined && child !== false));
    return element;
  };

  const ICONS = {
    play: "M7 4.5v15l12.5-7.5z",
    pause: "M7 5h3.6v14H7zM13.4 5H17v14h-3.6z",
    step: "M5 5v14l9-7zM16 5h3v14h-3z",
    restart: "M12 5V1.5L6.5 6.5 12 11.5V8a5 5 0 1 1-5 5H4a8 8 0 1 0 8-8z",
    dice: "M5 3h14a2 2 0 0 1 2 2v14a2 2 0 0 1-2 2H5a2 2 0 0 1-2-2V5a2 2 0 0 1 2-2zm3 3.5A1.5 1.5 0 1 0 8 9.500a1.500 1.500 0 0 0 0-3zm8 0A1.500 1.500 0 1 0 16 9.500a1.500 1.500 0 0 0 0-3zm-4 4a1.500 1.500 0 1 0 0 3 1.500 1.500 0 0 0 0-3zm-4 4a1.500 1.500 0 1 0 0 3 1.500 1.500 0 0 0 0-3zm8 0a1.500 1.500 0 1 0 0 3 1.500 1.500 0 0 0 0-3z",
  };

  const icon = (name) => {
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg"), path = document.createElementNS(svg.namespaceURI, "path");
    for (const [key, value] of Object.entries({ viewBox: "0 0 24 24", "aria-hidden": "true", focusable: "false" })) svg.setAttribute(key, value);
    path.setAttribute("d", ICONS[name]);
    path.setAttribute("fill-rule", "evenodd");
    svg.append(path);
    return svg;
  };

  /** One of several: radio buttons that look like a switch. */
  const choice = (legend, options, chosen, change, { hidden = false } = {}) => {
    const name = `choice-${count++}`;
    const inputs = options.map(([value, text]) =>
      h("label", { class: "pill" }, h("input", { type: "radio", name, value, checked: value === chosen, change: () => change(value) }), h("span", {}, text)));
    return h("fieldset", { class: "choice" }, h("legend", { class: hidden ? "unseen" : null }, legend), h("div", { class: "pills" }, ...inputs));
  };

  /** A number from low to high; on a logarithmic scale where it spans more than a factor of twenty. */
  const slider = (label, { low, high, value, step, say = UPS.say, hint }, change) => {
    const id = `slider-${count++}`, logarithmic = !step && low > 0 && high / low > 20;
    const to = (v) => (step ? v : logarithmic ? Math.log(v / low) / Math.log(high / low) : (v - low) / (high - low)) ;
    const from = (u) => (step ? u : logarithmic ? low * (high / low) ** u : low + u * (high - low));
    const output = h("output", { for: id }, say(value));
    const input = h("input", {
      id, type: "range", min: step ? low : 0, max: step ? high : 1, step: step ?? 0.005, "aria-valuetext": say(value),
      disabled: low === high,
      input: () => { show(from(Number(input.value))); change(from(Number(input.value)), false); },
      change: () => change(from(Number(input.value)), true),
    });
    const show = (v) => {
      output.textContent = say(v);
      input.setAttribute("aria-valuetext", say(v));
    };
    input.value = low === high ? 0 : to(value);
    const element = h("div", { class: "slider" }, h("label", { for: id }, label), output, input, hint ? h("small", {}, hint) : null);
    element.set = (v) => { input.value = to(v); show(v); };
    return element;
  };

  const select = (label, options, chosen, change) => {
    const id = `select-${count++}`;
    const field = h("select", { id, change: () => change(field.value) }, ...options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
    const element = h("div", { class: "select" }, h("label", { for: id }, label), field);
    element.field = field;
    return element;
  };

  const tick = (label, checked, change) => {
    const input = h("input", { type: "checkbox", checked, change: () => change(input.checked) });
    return h("label", { class: "tick" }, input, h("span", {}, label));
  };

  const button = (label, press, { sign, kind = "", hint } = {}) =>
    h("button", { type: "button", class: kind, click: press, title: hint, "aria-label": sign && kind.includes("round") ? label : null },
      sign ? icon(sign) : null, sign && kind.includes("round") ? null : h("span", {}, label));

  const group = (title, ...children) => h("section", { class: "group" }, h("h3", {}, title), ...children);

  Object.assign(UPS, { h, icon, choice, slider, select, tick, button, group });
})();
