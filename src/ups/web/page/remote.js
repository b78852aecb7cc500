// The backend that asks the server which sent this page, and the start of the page with it.
"use strict";
(() => {
  async function asked(path, body, signal) {
    let answer;
    try {
      answer = await fetch(path, body ? { method: "POST", body, signal } : {});
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new Error("the server does not answer; start it again with `ups serve`");
    }
    if (!answer.ok) {
      const told = await answer.json().catch(() => ({}));
      throw new Error(told.error || `the server answered ${answer.status}`);
    }
    return answer;
  }

  const fieldsOf = (start, shape) => ({ fields: { values: start.fields, shape: start.shape }, ...staticOf(start.static, shape) });
  const staticOf = (fields, shape) => Object.fromEntries(Object.entries(fields).map(([name, values]) => [name, { values, shape }]));

  async function* messages(body) {
    const reader = body.getReader();
    let rest = new Uint8Array(0);
    try {
      for (;;) {
        for (let found = UPS.unpacked(rest); found; found = UPS.unpacked(rest)) {
          rest = rest.subarray(found.length);
          yield found;
        }
        const { done, value } = await reader.read();
        if (done) return;
        const joined = new Uint8Array(rest.length + value.length);
        joined.set(rest);
        joined.set(value, rest.length);
        rest = joined;
      }
    } finally {
      await reader.cancel().catch(() => {});
    }
  }

  UPS.remote = (base = "play/") => ({
    async describe() {
      return (await asked(`${base}describe`)).json();
    },

    async start(task, { name, seed, parameters, shape }) {
      const body = UPS.packed({ task, name, seed, parameters, shape }, {});
      const { arrays } = UPS.unpacked(new Uint8Array(await (await asked(`${base}start`, body)).arrayBuffer()));
      const { fields, ...others } = arrays;
      return {
        fields: fields.values,
        shape: fields.shape,
        static: Object.fromEntries(Object.entries(others).map(([each, { values }]) => [each, values])),
      };
    },

    async play(task, { start, shape, parameters, static: fields, dt, steps, members, seed, solver }) {
      const told = { task, parameters, dt, steps, members, seed, solver };
      const arrays = fieldsOf({ fields: start, shape: [start.length / UPS.product(shape), ...shape], static: fields }, shape);
      const leaving = new AbortController();
      const answer = await asked(`${base}frames`, UPS.packed(told, arrays), leaving.signal);
      const frames = messages(answer.body);
      return {
        async next() {
          const { done, value } = await frames.next().catch((error) => {
            if (leaving.signal.aborted) return { done: true };
            throw new Error(`the server stopped in the middle (${error.message}); play again`);
          });
          if (done) return null;
          const of = (name) => value.arrays[name]?.values ?? null;
          return { time: value.told.time, fields: of("fields"), truth: of("truth"), spread: of("spread"), numbers: value.told.numbers };
        },
        stop() {
          leaving.abort();
        },
      };
    },

    async download(recording, format) {
      const { task, times, parameters, shape } = recording;
      const values = new Float32Array(times.length * recording.frames[0].length);
      recording.frames.forEach((frame, i) => values.set(frame, i * frame.length));
      const whole = [times.length, recording.channels.length, ...shape];
      const arrays = { fields: { values, shape: whole }, ...staticOf(recording.static, shape) };
      return (await asked(`${base}file/${format}`, UPS.packed({ task, times, parameters }, arrays))).blob();
    },
  });

  addEventListener("DOMContentLoaded", () => UPS.start(UPS.remote(), document.getElementById("ups")));
})();
