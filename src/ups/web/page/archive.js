// NumPy's archive (.npz): a zip of arrays, not compressed.
"use strict";
globalThis.UPS ??= {};
(() => {
  const CRC = Uint32Array.from({ length: 256 }, (_, i) => {
    for (let k = 0; k < 8; k++) i = i & 1 ? (i >>> 1) ^ 0xedb88320 : i >>> 1;
    return i;
  });

  function crc(bytes) {
    let c = 0xffffffff;
    for (const byte of bytes) c = CRC[(c ^ byte) & 255] ^ (c >>> 8);
    return (c ^ 0xffffffff) >>> 0;
  }

  /** An array in NumPy's format: of float32, float64, or of words. */
  function npy(values, shape) {
    let kind, body;
    if (values instanceof Float32Array || values instanceof Float64Array) {
      kind = values instanceof Float32Array ? "<f4" : "<f8";
      body = new Uint8Array(values.buffer, values.byteOffset, values.byteLength);
    } else {
      const words = values.map((word) => [...word].map((letter) => letter.codePointAt(0)));
      const longest = Math.max(1, ...words.map((word) => word.length));
      const letters = new Uint32Array(longest * words.length);
      words.forEach((word, i) => letters.set(word, i * longest));
      kind = `<U${longest}`;
      body = new Uint8Array(letters.buffer);
    }
    const size = shape.length === 1 ? `${shape[0]},` : shape.join(", ");
    const text = `{'descr': '${kind}', 'fortran_order': False, 'shape': (${size}), }`;
    const padded = Math.ceil((10 + text.length + 1) / 64) * 64;
    const file = new Uint8Array(padded + body.length).fill(32, 0, padded);
    file.set([0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59, 1, 0, (padded - 10) & 255, (padded - 10) >> 8]);
    file.set(new TextEncoder().encode(text), 10);
    file[padded - 1] = 10;
    file.set(body, padded);
    return file;
  }

  function zip(files) {
    const parts = [], directory = [];
    let place = 0;
    const record = (signature, lead, name, body, tail) => {
      const sum = crc(body), head = new DataView(new ArrayBuffer(28 + 2 * (lead.length + tail.length)));
      let at = 0;
      const short = (v) => { head.setUint16(at, v, true); at += 2; };
      const long = (v) => { head.setUint32(at, v, true); at += 4; };
      long(signature);
      lead.forEach(short);
      [0, 0, 0, 0x21].forEach(short); // no flags, stored, midnight of 1 January 1980
      [sum, body.length, body.length].forEach(long);
      [name.length, 0].forEach(short);
      tail.forEach(short);
      return new Uint8Array(head.buffer);
    };
    for (const [word, body] of Object.entries(files)) {
      const name = new TextEncoder().encode(word);
      const local = record(0x04034b50, [20], name, body, []);
      const offset = [0, 0, 0, 0, 0, place & 0xffff, place >>> 16];
      directory.push(record(0x02014b50, [20, 20], name, body, offset), name);
      parts.push(local, name, body);
      place += local.length + name.length + body.length;
    }
    const size = directory.reduce((sum, part) => sum + part.length, 0), count = Object.keys(files).length;
    const end = new DataView(new ArrayBuffer(22));
    end.setUint32(0, 0x06054b50, true);
    end.setUint16(8, count, true);
    end.setUint16(10, count, true);
    end.setUint32(12, size, true);
    end.setUint32(16, place, true);
    return new Blob([...parts, ...directory, new Uint8Array(end.buffer)]);
  }

  /** Channels last, as `Rollout.save` writes them. */
  function channelsLast(frames, channels) {
    const points = frames[0].length / channels, values = new Float32Array(frames.length * frames[0].length);
    frames.forEach((frame, t) => {
      for (let c = 0; c < channels; c++) for (let p = 0; p < points; p++) values[(t * points + p) * channels + c] = frame[c * points + p];
    });
    return values;
  }

  /** What was played: values (T, *space, C), times, channels, places, parameters, static fields, the solver's values. */
  UPS.npz = (recording) => {
    const { shape, channels, times, frames, truth } = recording, whole = [frames.length, ...shape, channels.length];
    const files = { "values.npy": npy(channelsLast(frames, channels.length), whole), "times.npy": npy(Float64Array.from(times), [times.length]) };
    files["channels.npy"] = npy(channels, [channels.length]);
    files["task.npy"] = npy([recording.task], [1]);
    shape.forEach((n, axis) => {
      const x = Float64Array.from({ length: n }, (_, i) => recording.origin[axis] + ((i + 0.5) / n) * recording.lengths[axis]);
      files[`${"xy"[axis]}.npy`] = npy(x, [n]);
    });
    for (const [name, value] of Object.entries(recording.parameters)) files[`${name}.npy`] = npy(Float64Array.of(value), [1]);
    for (const [name, values] of Object.entries(recording.static)) files[`${name}.npy`] = npy(values, shape);
    if (truth.every(Boolean)) files["truth.npy"] = npy(channelsLast(truth, channels.length), whole);
    return zip(files);
  };
})();
