"""How fast a playground plays, in a real browser."""

from __future__ import annotations

from playwright.sync_api import Page

PLAY = """async () => {
  const { player } = UPS.page, begun = performance.now();
  const until = async (count) => {
    while (player.frames.length < count) await new Promise(requestAnimationFrame);
    return performance.now();
  };
  UPS.page.rate = 60;
  UPS.page.play();
  const first = await until(2), ends = [first];
  for (let i = 1; i <= 5; i++) ends.push(await until(2 + 20 * i));
  UPS.page.pause();
  return [(first - begun) / 1000, Math.max(...ends.slice(1).map((end, i) => 20000 / (end - ends[i])))];
}"""


def pace(page: Page) -> tuple[float, float]:
    """Seconds from play to the first frame, and frames a second after that: the best of five stretches of twenty, for
    other work comes and goes.
    """
    first, rate = page.evaluate(PLAY)
    print(f"first frame after {first:.3f} s, then {rate:.1f} frames a second")
    return first, rate
