"use strict";
// Curves: memory over time, and how the search went.

const CHARTS = [];

function clearCharts() {
  while (CHARTS.length) CHARTS.pop().destroy();
}

function chartAxis(format, size) {
  return {
    stroke: () => css("--quiet"), grid: { stroke: () => css("--line"), width: 1 }, ticks: { stroke: () => css("--line") },
    values: (chart, values) => values.map((value) => (value === null ? "" : format(value))), size,
  };
}

function addChart(frame, options, data, label) {
  const chart = new uPlot({
    width: Math.max(280, frame.clientWidth || 900), height: 300, scales: { x: { time: false } }, ...options,
  }, data, frame);
  const canvas = frame.querySelector("canvas");
  canvas.setAttribute("role", "img");
  canvas.setAttribute("aria-label", label);
  CHARTS.push(chart);
  chart.frame = frame;
  return chart;
}

/** The curves of a plan: when, and bytes by kind. */
async function readCurves(memory) {
  const when = await readColumn(memory.when), held = await readColumn(memory.held);
  let from = 0, place = 0;
  return memory.points.map((count) => {
    const curve = { when: Array.from(when.subarray(from, from + count)), held: [] };
    for (let k = 0; k < memory.kinds.length; k++, place += count) curve.held.push(Array.from(held.subarray(place, place + count)));
    from += count;
    return curve;
  });
}

/** Kinds on top of each other, drawn from the highest to the lowest. */
function memoryChart(frame, memory, curve, device, step, name, fitsPeak) {
  const names = memory.kinds.map((kind) => PAGE.kinds[kind]);
  const sums = [];
  curve.held.forEach((held, k) => sums.push(held.map((value, at) => value + (k ? sums[k - 1][at] : 0))));
  const extend = (values) => [...values, values[values.length - 1]];
  const x = [...curve.when, Math.max(step, curve.when[curve.when.length - 1])];
  const flat = (value) => x.map(() => value);
  const order = names.map((_, k) => names.length - 1 - k);
  const series = [{ label: "time", value: (chart, value) => (value === null ? "" : formatSeconds(value)) }];
  const data = [x];
  for (const kind of order) {
    const color = KIND_COLORS[memory.kinds[kind] % KIND_COLORS.length];
    series.push({
      label: names[kind], fill: color, stroke: color, width: 0.5, points: { show: false }, paths: uPlot.paths.stepped({ align: 1 }),
      value: (chart, value, index, at) => (at === null || at === undefined ? "" : formatBytes(curve.held[kind][Math.min(at, curve.held[kind].length - 1)])),
    });
    data.push(extend(sums[kind]));
  }
  for (const [label, value, dash] of [["may be", memory.usable[device], [8, 4]], ["device has", memory.total[device], [2, 4]]]) {
    series.push({ label, stroke: () => css("--text"), width: 1.5, dash, points: { show: false }, value: () => formatBytes(value) });
    data.push(flat(value));
  }
  const limits = fitsPeak ? [] : [memory.usable[device], memory.total[device]];
  const top = Math.max(memory.peak[device], ...limits) * 1.05;
  const scales = { x: { time: false }, y: { range: () => [0, top || 1] } };
  return addChart(frame, { scales, series, axes: [chartAxis(formatSeconds, 40), chartAxis(formatBytes, 84)] }, data,
    `Memory of ${name} over the step: at most ${formatBytes(memory.peak[device])} of ${formatBytes(memory.usable[device])} that it may be`);
}

/** The section of memory: one device at a time, the fullest first. */
async function drawMemory(plan) {
  showSection("memory", Boolean(plan.memory));
  if (!plan.memory) return;
  const memory = plan.memory, nodes = await readColumn(plan.network.nodes);
  const curves = await readCurves(memory);
  const fullness = memory.devices.map((_, k) => memory.peak[k] / Math.max(memory.usable[k], 1));
  const seen = new Map();
  memory.devices.forEach((device, k) => {
    const like = `${memory.curve[k]} ${memory.usable[k]}`;
    if (!seen.has(like)) seen.set(like, []);
    seen.get(like).push(k);
  });
  const groups = [...seen.values()].sort((a, b) => fullness[b[0]] - fullness[a[0]]);
  const choice = make("select", { id: "memory-choice" });
  groups.forEach((group, k) => {
    const more = group.length > 1 ? ` and ${plural(group.length - 1, "other")} like it` : "";
    choice.append(make("option", { value: String(k) }, `${nodes[memory.devices[group[0]]]}${more}, ${formatShare(fullness[group[0]])} full`));
  });
  const frame = make("div", { className: "chart" });
  const step = plan.timelines[0].step;
  let chart = null;
  const show = () => {
    if (chart) { CHARTS.splice(CHARTS.indexOf(chart), 1); chart.destroy(); }
    frame.replaceChildren();
    const device = groups[Number(choice.value) || 0][0];
    chart = memoryChart(frame, memory, curves[memory.curve[device]], device, step, nodes[memory.devices[device]], fit.checked);
  };
  const near = makeCheck("as high as the peak", false, show), fit = near.querySelector("input");
  choice.addEventListener("change", show);
  byId("memory-body").replaceChildren(
    make("div", { className: "controls" }, make("label", {}, "Device ", choice), near), frame,
    make("p", { className: "quietly" }, "Dashed: what the peak may be; dotted: what the device has. Drag across to zoom, double-click for all."),
    ...plan.tables.device.map(makeFoldedTable),
  );
  show();
}

/** When which method found what; the best step and the bounds over time. */
function searchChart(frame, search) {
  const { history } = search, end = Math.max(search.seconds || 0, history[history.length - 1][0]);
  const methods = [...new Set(history.map((each) => each[1]))], claims = [...new Set(history.map((each) => each[4]))];
  const x = [...history.map((each) => each[0]), end], data = [x];
  const carried = (pick) => {
    let last = null;
    return [...history, null].map((each) => {
      const value = each ? pick(each) : null;
      if (value !== null && value !== undefined) last = value;
      return last;
    });
  };
  const format = (chart, value) => (value === null || value === undefined ? "" : formatSeconds(value));
  const series = [{ label: "after", value: format }];
  series.push({ label: "best step", stroke: CAUSE_COLORS[0], width: 2, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false }, value: format });
  data.push(carried((each) => each[2]));
  claims.forEach((claim, k) => {
    if (!history.some((each) => each[4] === claim && each[3] > 0)) return;
    series.push({ label: `bound: ${claim}`, stroke: CAUSE_COLORS[(6 + 3 * k) % CAUSE_COLORS.length], dash: [6, 3], width: 1.5, paths: uPlot.paths.stepped({ align: 1 }), points: { show: false }, value: format });
    data.push(carried((each) => (each[4] === claim && each[3] > 0 ? each[3] : null)));
  });
  methods.forEach((method, k) => {
    const color = partColor(k);
    series.push({ label: method, stroke: color, paths: () => null, points: { show: true, size: 8, fill: color }, value: format });
    data.push([...history.map((each) => (each[1] === method ? each[2] : null)), null]);
  });
  const scales = { x: { time: false } }, axes = [chartAxis(formatSeconds, 40), chartAxis(formatSeconds, 84)];
  return addChart(frame, { scales, series, axes }, data, "Best step and bounds over the time of the search");
}

/** The section of the search. */
function drawSearch(plan) {
  const { search } = plan, body = byId("search-body"), found = Object.entries(search.methods);
  showSection("search", search.history.length > 0 || found.length > 0 || search.others.length > 0);
  body.replaceChildren();
  if (search.history.length) {
    const frame = make("div", { className: "chart" });
    body.append(frame, ...plan.tables.search.map(makeFoldedTable));
    searchChart(frame, search);
  }
  const times = (rows) => rows.sort((a, b) => (a[1] ?? Infinity) - (b[1] ?? Infinity)).map(([name, seconds]) => [name, seconds === null ? "no plan fits" : formatSeconds(seconds)]);
  if (found.length) body.append(makeTable({ title: "The best step of each method", heads: ["method", "step"], right: [false, true], rows: times(found), note: "" }));
  if (search.others.length) body.append(makeTable({ title: "The next best plans", heads: ["plan", "step"], right: [false, true], rows: times(search.others), note: "" }));
}
