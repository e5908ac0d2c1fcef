"use strict";
// Bars as columns, and how the bars of one row are drawn. Bars that are narrower than a pixel are
// drawn as one, as dark as they fill it, so that a row takes as long to draw as it is wide.

const SHADES = 8;

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

/** The cause of most of the bars from one to another; of many, some are asked. */
function mainCause(bars, from, to) {
  if (to - from === 1) return bars.cause[from];
  const found = new Float64Array(PAGE.causes.length);
  const stride = Math.max(1, Math.floor((to - from) / 8));
  let best = bars.cause[from];
  for (let k = from; k < to; k += stride) {
    if (!bars.chosen[k]) continue;
    found[bars.cause[k]] += bars.length[k] + 1;
    if (found[bars.cause[k]] > found[best]) best = bars.cause[k];
  }
  return best;
}

/** Rectangles by colour and shade, so that the colour is set once for many of them. */
class Painter {
  constructor() {
    this.rects = new Map();
  }

  add(cause, shade, x, y, width, height) {
    const key = cause * (SHADES + 1) + shade;
    let list = this.rects.get(key);
    if (!list) this.rects.set(key, list = []);
    list.push(x, y, width, height);
  }

  paint(context, alpha) {
    for (const [key, list] of this.rects) {
      const cause = Math.floor(key / (SHADES + 1)), shade = key % (SHADES + 1);
      context.fillStyle = CAUSE_COLORS[cause % CAUSE_COLORS.length];
      context.globalAlpha = alpha * shade / SHADES;
      for (let k = 0; k < list.length; k += 4) context.fillRect(list[k], list[k + 1], list[k + 2], list[k + 3]);
    }
    context.globalAlpha = 1;
  }
}

/** The bars of one set from a tick to another, onto a row; `label` is told of those that are wide. */
function drawSet(painter, bars, set, area, from, to, label) {
  const low = bars.first[set], high = bars.first[set + 1];
  const scale = area.width / (to - from), pixel = 1 / scale;
  let k = firstAt(bars.finish, from, low, high);
  let run = null;
  const flush = () => {
    if (run) painter.add(run.cause, run.shade, run.x, area.y, run.width, area.height);
    run = null;
  };
  while (k < high && bars.start[k] < to) {
    if (!bars.chosen[k]) { k++; continue; }
    const left = Math.max(0, (bars.start[k] - from) * scale);
    const right = Math.min(area.width, (bars.finish[k] - from) * scale);
    if (right - left >= 2) {
      flush();
      const width = right - left > 4 ? right - left - 0.6 : right - left;
      painter.add(bars.cause[k], SHADES, area.x + left, area.y, width, area.height);
      if (width > 34) label(k, area.x + left, width);
      k++;
      continue;
    }
    const column = Math.floor(left), end = from + (column + 1) * pixel;
    // Those that end in this column; one that begins in it and is wide comes next.
    const after = Math.max(k + 1, firstAt(bars.finish, end, k, high));
    const covered = bars.covered[after] - bars.covered[k];
    const shade = Math.max(1, Math.min(SHADES, Math.round(SHADES * covered * scale)));
    const cause = mainCause(bars, k, after), x = area.x + column;
    if (run && run.cause === cause && run.shade === shade && run.x + run.width === x) run.width++;
    else {
      flush();
      run = { cause, shade, x, width: 1 };
    }
    k = after;
  }
  flush();
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
