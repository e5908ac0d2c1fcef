"use strict";
// Bars as columns, and how the bars of one row are drawn. Bars that are narrower than a pixel are
// drawn as one, as dark as they fill it, so that a row takes as long to draw as it is wide.

// Pixels from which on a bar is a rectangle of its own, with an edge and a name.
const WIDE = 6;

/** The first place from `low` on, before `high`, whose value is at least a limit. */
function firstAt(values, limit, low, high) {
  while (low < high) {
    const middle = (low + high) >>> 1;
    if (values[middle] < limit) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The columns of some sets of bars, with where each set begins. */
async function readBars(columns, counts) {
  const bars = await readColumns(columns);
  const total = bars.start.length;
  bars.finish = new Float64Array(total);
  for (let k = 0; k < total; k++) bars.finish[k] = bars.start[k] + bars.length[k];
  bars.first = new Uint32Array(counts.length + 1);
  counts.forEach((count, k) => { bars.first[k + 1] = bars.first[k] + count; });
  bars.chosen = new Uint8Array(total).fill(1);
  bars.covered = new Float64Array(total + 1);
  sumCovered(bars);
  return bars;
}

/** How many ticks of bars that are chosen lie before each bar. */
function sumCovered(bars) {
  for (let k = 0; k < bars.length.length; k++) {
    bars.covered[k + 1] = bars.covered[k] + (bars.chosen[k] ? bars.length[k] : 0);
  }
}

/** The first place from one on, before `high`, whose value is at least a limit that is near. */
function nextAt(values, limit, low, high) {
  let step = 1, from = low;
  while (from + step < high && values[from + step] < limit) {
    from += step;
    step *= 2;
  }
  return firstAt(values, limit, from, Math.min(high, from + step + 1));
}

const WEIGHTS = new Float64Array(64);

/** The cause of most of the bars from one to another; of many, some are asked. */
function mainCause(bars, from, to) {
  if (to - from === 1) return bars.cause[from];
  const stride = Math.max(1, (to - from) >> 2);
  let best = bars.cause[from];
  for (let k = from; k < to; k += stride) {
    const cause = bars.cause[k];
    if (bars.chosen[k]) WEIGHTS[cause] += bars.length[k] + 1;
    if (WEIGHTS[cause] > WEIGHTS[best]) best = cause;
  }
  for (let k = from; k < to; k += stride) WEIGHTS[bars.cause[k]] = 0;
  return best;
}

/** The parts of a colour, as a canvas's pixels have them. */
function pixelOf(color, alpha) {
  const number = parseInt(color.slice(1), 16);
  return ((alpha << 24) | ((number & 255) << 16) | (number & 0xff00) | (number >> 16)) >>> 0;
}

const SOLID = CAUSE_COLORS.map((color) => pixelOf(color, 0));

/** Draws rows: what is narrow into one line of pixels, which is then as high as the row. */
class Painter {
  constructor() {
    this.strip = document.createElement("canvas");
    this.width = 0;
  }

  /** Makes room for a line of so many pixels. */
  resize(width) {
    if (this.width === width) return;
    this.width = this.strip.width = width;
    this.strip.height = 1;
    this.context = this.strip.getContext("2d");
    this.image = this.context.createImageData(width, 1);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  /** The bars of one set from a tick to another, onto an area; `label` is told of those that are wide. */
  paintRow(context, bars, set, area, from, to, label) {
    const low = bars.first[set], high = bars.first[set + 1], width = Math.floor(area.width);
    const scale = area.width / (to - from), wide = [];
    this.resize(width);
    this.pixels.fill(0);
    let isUsed = false;
    for (let k = firstAt(bars.finish, from, low, high); k < high && bars.start[k] < to;) {
      if (!bars.chosen[k]) { k++; continue; }
      const left = Math.max(0, (bars.start[k] - from) * scale), right = Math.min(width, (bars.finish[k] - from) * scale);
      if (right - left >= WIDE) {
        wide.push(k, left, right);
        k++;
        continue;
      }
      isUsed = true;
      const column = Math.min(width - 1, Math.floor(left));
      if (right - left >= 1) {  // all pixels that it fills, but for an edge
        const pixel = SOLID[bars.cause[k] % SOLID.length] | 0xff000000;
        for (let x = column; x < Math.max(column + 1, Math.round(right) - (right - left > 3 ? 1 : 0)) && x < width; x++) this.pixels[x] = pixel;
        k++;
        continue;
      }
      // Those that end in this column; one that begins in it and is wider comes next.
      const after = Math.max(k + 1, nextAt(bars.finish, from + (column + 1) / scale, k, high));
      const share = Math.min(1, (bars.covered[after] - bars.covered[k]) * scale);
      const alpha = Math.max(40, Math.round(255 * share), this.pixels[column] >>> 24);
      this.pixels[column] = (SOLID[mainCause(bars, k, after) % SOLID.length] | (alpha << 24)) >>> 0;
      k = after;
    }
    if (isUsed) {
      this.context.putImageData(this.image, 0, 0);
      context.drawImage(this.strip, 0, 0, width, 1, area.x, area.y, width, area.height);
    }
    for (let k = 0; k < wide.length; k += 3) {
      const [bar, left, right] = [wide[k], wide[k + 1], wide[k + 2]];
      context.fillStyle = CAUSE_COLORS[bars.cause[bar] % CAUSE_COLORS.length];
      context.fillRect(area.x + left, area.y, right - left - 0.7, area.height);
      if (right - left > 36) label(bar, area.x + left, right - left);
    }
  }
}

/** The bar of a set at a tick, or the nearest within some ticks; -1: there is none. */
function barAt(bars, set, tick, reach) {
  const low = bars.first[set], high = bars.first[set + 1];
  const place = firstAt(bars.finish, tick, low, high);
  let best = -1, distance = reach;
  for (let k = Math.max(low, place - 1); k < Math.min(high, place + 2); k++) {
    const away = Math.max(0, bars.start[k] - tick, tick - bars.finish[k]);
    if (bars.chosen[k] && away <= distance && (best < 0 || away < distance)) {
      best = k;
      distance = away;
    }
  }
  return best;
}
