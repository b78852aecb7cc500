// Films of what was played: GIFs by an encoder of our own, MP4s where the browser has one.
"use strict";
globalThis.UPS ??= {};
(() => {
  const key = (r, g, b) => ((r >> 3) << 10) | ((g >> 3) << 5) | (b >> 3);

  /** The 256 commonest colours of some pictures, and the nearest of them to any other. */
  function palette(pictures) {
    const seen = new Map();
    for (const { data } of pictures) {
      for (let i = 0; i < data.length; i += 4) {
        const k = key(data[i], data[i + 1], data[i + 2]);
        const found = seen.get(k);
        if (found) found.count++;
        else seen.set(k, { count: 1, colour: [data[i], data[i + 1], data[i + 2]] });
      }
    }
    const colours = [...seen.values()].sort((a, b) => b.count - a.count).slice(0, 256).map(({ colour }) => colour);
    const nearest = new Map();
    return {
      colours,
      index(r, g, b) {
        const k = key(r, g, b);
        let best = nearest.get(k);
        if (best === undefined) {
          let least = Infinity;
          colours.forEach(([a, c, d], i) => {
            const distance = (a - r) ** 2 + (c - g) ** 2 + (d - b) ** 2;
            if (distance < least) { least = distance; best = i; }
          });
          nearest.set(k, best);
        }
        return best;
      },
    };
  }

  /** The LZW codes of 8-bit indices, packed from the lowest bit. */
  function compressed(indices) {
    const bytes = [], CLEAR = 256, END = 257;
    let table = new Map(), next = 258, size = 9, bits = 0, held = 0;
    const put = (code) => {
      held |= code << bits;
      for (bits += size; bits >= 8; bits -= 8) { bytes.push(held & 255); held >>>= 8; }
    };
    put(CLEAR);
    let prefix = indices[0];
    for (let i = 1; i < indices.length; i++) {
      const known = table.get((prefix << 8) | indices[i]);
      if (known !== undefined) { prefix = known; continue; }
      put(prefix);
      if (next === 4096) {
        put(CLEAR);
        table = new Map();
        next = 258;
        size = 9;
      } else {
        if (next === 1 << size) size++;
        table.set((prefix << 8) | indices[i], next++);
      }
      prefix = indices[i];
    }
    put(prefix);
    put(END);
    if (bits) bytes.push(held & 255);
    return bytes;
  }

  /** `draw(i)` gives picture i as ImageData; all are of one size. */
  UPS.gif = async (count, draw, delay, progress = () => {}) => {
    const first = draw(0), { width, height } = first;
    const { colours, index } = palette([first, draw(count >> 1), draw(count - 1)]);
    const short = (v) => [v & 255, v >> 8], text = (word) => [...word].map((letter) => letter.charCodeAt(0));
    const colourTable = new Uint8Array(768);
    colours.forEach((colour, i) => colourTable.set(colour, 3 * i));
    const parts = [
      Uint8Array.from([...text("GIF89a"), ...short(width), ...short(height), 0xf7, 0, 0]),
      colourTable,
      Uint8Array.from([0x21, 0xff, 11, ...text("NETSCAPE2.0"), 3, 1, 0, 0, 0]),
    ];
    for (let frame = 0; frame < count; frame++) {
      const { data } = draw(frame), indices = new Uint8Array(width * height);
      for (let i = 0; i < indices.length; i++) indices[i] = index(data[4 * i], data[4 * i + 1], data[4 * i + 2]);
      parts.push(Uint8Array.from([0x21, 0xf9, 4, 4, ...short(Math.max(2, Math.round(delay / 10))), 0, 0, 0x2c, 0, 0, 0, 0, ...short(width), ...short(height), 0, 8]));
      const bytes = compressed(indices);
      for (let i = 0; i < bytes.length; i += 255) {
        const block = bytes.slice(i, i + 255);
        parts.push(Uint8Array.from([block.length, ...block]));
      }
      parts.push(Uint8Array.of(0));
      progress((frame + 1) / count);
      await new Promise((done) => setTimeout(done));
    }
    parts.push(Uint8Array.of(0x3b));
    return new Blob(parts, { type: "image/gif" });
  };

  const MP4 = ["video/mp4;codecs=avc1.42E01E", "video/mp4"]; // what every player knows, or what this browser likes best
  const kind = () => MP4.find((type) => typeof MediaRecorder !== "undefined" && MediaRecorder.isTypeSupported(type));
  UPS.hasMP4 = () => Boolean(kind());

  /** The browser's encoder records a canvas as it is drawn on, so it takes as long as the film. */
  UPS.mp4 = async (count, draw, delay, progress = () => {}) => {
    const first = draw(0), canvas = document.createElement("canvas");
    Object.assign(canvas, { width: first.width, height: first.height });
    const context = canvas.getContext("2d"), chunks = [];
    context.putImageData(first, 0, 0);
    const recorder = new MediaRecorder(canvas.captureStream(), { mimeType: kind(), videoBitsPerSecond: 4e6 });
    recorder.ondataavailable = ({ data }) => data.size && chunks.push(data);
    const ended = new Promise((done, failed) => {
      recorder.onstop = done;
      recorder.onerror = () => failed(new Error("the browser's encoder failed; download a GIF"));
    });
    recorder.start();
    for (let frame = 0; frame < count; frame++) {
      context.putImageData(draw(frame), 0, 0);
      progress((frame + 1) / count);
      await new Promise((done) => setTimeout(done, delay));
    }
    recorder.stop();
    await ended;
    return new Blob(chunks, { type: "video/mp4" });
  };
})();
