"use strict";
// Ticks at round times.

/** A round step of which about so many fit into a span. */
function roundStep(span, count) {
  const rough = span / Math.max(count, 1), power = 10 ** Math.floor(Math.log10(rough));
  return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough) || rough;
}

/** A time with as many digits as tell it from the next tick. */
function formatTick(seconds, step) {
  const largest = Math.max(Math.abs(seconds), step);
  const [scale, unit] = largest >= 1 ? [1, "s"] : largest >= 1e-3 ? [1e-3, "ms"] : largest >= 1e-6 ? [1e-6, "us"] : [1e-9, "ns"];
  const digits = Math.max(0, Math.min(9, -Math.floor(Math.log10(step / scale) + 1e-9)));
  return `${(seconds / scale).toFixed(digits)} ${unit}`;
}

/** Draws times along the top, and a thin line down from each. */
function drawAxis(context, left, width, bottom, from, to) {
  const step = roundStep(to - from, width / 110);
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "left";
  const line = css("--line"), quiet = css("--quiet");
  for (let k = Math.ceil(from / step); k * step <= to; k++) {
    const x = Math.round(left + (k * step - from) / (to - from) * width) + 0.5;
    context.strokeStyle = line;
    context.beginPath();
    context.moveTo(x, 16);
    context.lineTo(x, bottom);
    context.stroke();
    context.fillStyle = quiet;
    context.fillText(formatTick(k * step, step), x + 3, 9);
  }
}
