// Colours of fields and lines. Every map reads the same to the colour-blind: lightness alone tells low from high, and
// of the diverging one, blue from orange.
"use strict";
globalThis.UPS ??= {};
(() => {
  const STOPS = {
    viridis: "440154 471164 482071 472e7c 443b84 3f4889 3a548c 34608d 2f6c8e 2a768e 26818e 228b8d 1f958b 1fa088 24aa83 2fb47c 42be71 58c765 70cf57 8bd646 a8db34 c5e021 e2e418 fde725",
    cividis: "00224e 002a61 003171 1c396f 2d416d 3a486c 45506c 50576c 5b606e 656870 6e6f73 777777 817f78 8c8878 969077 a19975 ada272 b9ab6d c4b468 d0be62 dcc859 e8d24f f5dc41 fee838",
    "blue–orange": "08315f 1d5a99 4f8fc6 94bfe0 d2e4f0 f6f4ef fbdcbf f2ab70 d9741f a4490a 5f2703",
    grey: "111111 f2f2f2",
  };
  const DIVERGING = "blue–orange";

  /** 256 colours as packed pixels, little-endian ABGR. */
  function table(name) {
    const stops = STOPS[name].split(" ").map((hex) => [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16)));
    const pixels = new Uint32Array(256);
    for (let i = 0; i < 256; i++) {
      const place = (i / 255) * (stops.length - 1), left = Math.min(Math.floor(place), stops.length - 2);
      const [r, g, b] = stops[left].map((v, c) => Math.round(v + (place - left) * (stops[left + 1][c] - v)));
      pixels[i] = (255 << 24) | (b << 16) | (g << 8) | r;
    }
    return pixels;
  }

  const tables = {};
  UPS.maps = Object.keys(STOPS);
  UPS.diverging = DIVERGING;
  UPS.table = (name) => (tables[name] ??= table(name));

  /** What the style sheet says, for canvases: read again when light turns to dark. */
  UPS.ink = (() => {
    let known = null;
    const forget = () => { known = null; };
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", forget);
    return () => {
      if (known) return known;
      const style = getComputedStyle(document.documentElement);
      const of = (name) => style.getPropertyValue(`--${name}`).trim();
      return (known = {
        ink: of("ink"), soft: of("soft"), line: of("line"), card: of("card"),
        model: of("model"), truth: of("truth"), band: of("band"), sans: of("sans"),
        marks: ["mark-1", "mark-2", "mark-3", "mark-4", "mark-5", "mark-6"].map(of),
      });
    };
  })();
})();
