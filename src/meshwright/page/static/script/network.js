"use strict";
// The cluster: a drawing of its nodes and links, and a map of its devices.

const SVG = "http://www.w3.org/2000/svg";

function shape(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Where each node stands: devices below their host, switches above, each tier in the middle of what it joins. */
function placeNodes(network, width) {
  const { devices, hosts, columns } = network, total = columns.nodes.length;
  const at = new Array(total).fill(null), own = Array.from({ length: hosts }, () => []);
  for (let k = 0; k < devices; k++) own[columns.home[k]].push(k);
  const isMesh = network.cables.some(([a, b]) => b < devices && columns.home[a] !== columns.home[b]);
  const widest = Math.max(...own.map((each) => Math.min(each.length, 8)), 1);
  const perRow = isMesh ? Math.ceil(Math.sqrt(hosts)) : Math.max(1, Math.min(hosts, Math.floor(width / (widest * 17 + 18))));
  const slot = width / perRow, tiers = Math.max(1, ...columns.tier);
  const top = 40 + (tiers - 1) * 74, deep = Math.max(...own.map((each) => Math.ceil(each.length / 8)), 1) * 17 + 62;
  const isRing = isMesh && network.cables.length > 3 * hosts, radius = Math.min(width / 2.3, 60 + 14 * hosts);
  own.forEach((each, host) => {
    if (isRing) {
      const angle = 2 * Math.PI * host / hosts - Math.PI / 2, far = radius / 2.4;
      at[devices + host] = [width / 2 + radius * Math.cos(angle), far + 50 + far * Math.sin(angle)];
      each.forEach((device, k) => { at[device] = [at[devices + host][0] + (k - (each.length - 1) / 2) * 17, at[devices + host][1] + 22]; });
      return;
    }
    const x = (host % perRow + 0.5) * slot, y = top + Math.floor(host / perRow) * (isMesh ? Math.max(deep, 74) : deep);
    at[devices + host] = [x, y];
    each.forEach((device, k) => {
      const line = Math.floor(k / 8), count = Math.min(8, each.length - 8 * line);
      at[device] = [x + (k % 8 - (count - 1) / 2) * 17, y + 32 + line * 17];
    });
  });
  const beside = Array.from({ length: total }, () => []);
  for (const [a, b] of network.cables) { beside[a].push(b); beside[b].push(a); }
  for (let tier = 2; tier <= tiers; tier++) {
    const here = [];
    for (let node = devices + hosts; node < total; node++) if (columns.tier[node] === tier) here.push(node);
    const middle = (node) => {
      const below = beside[node].filter((each) => at[each]).map((each) => at[each][0]);
      return below.length ? below.reduce((sum, x) => sum + x, 0) / below.length : width / 2;
    };
    const wanted = new Map(here.map((node) => [node, middle(node)]));
    here.sort((a, b) => wanted.get(a) - wanted.get(b) || a - b);
    here.forEach((node, k) => { at[node] = [(k + 0.5) * width / here.length, 40 + (tiers - tier) * 74]; });
  }
  const height = Math.max(...at.filter(Boolean).map(([, y]) => y)) + 34;
  return { at, height };
}

function describeCable(network, cable) {
  const [a, b, there, back, rateThere, rateBack, busyThere, busyBack] = cable, { nodes } = network.columns;
  const side = (from, to, count, rate, busy) => `${nodes[from]} to ${nodes[to]}: ${plural(count, "link")}, ${formatRate(rate)}, ${formatShare(busy)} busy`;
  return [there ? side(a, b, there, rateThere, busyThere) : "", back ? side(b, a, back, rateBack, busyBack) : ""].filter(Boolean).join("\n");
}

function describeDevice(network, device) {
  const { nodes, busy, calls, full, type, link } = network.columns;
  return [
    `${nodes[device]}, ${network.types[type[device]]}`, `busy ${formatShare(busy[device])}, of that waiting for its team ${formatShare(calls[device])}`,
    `memory ${formatShare(full[device])} of what it may be`, `busiest link ${formatShare(link[device])}`,
  ].join("\n");
}

function withTip(element, text) {
  element.addEventListener("mousemove", (event) => showTip(event, text()));
  element.addEventListener("mouseleave", hideTip);
  return element;
}

/** The drawing: the wider a link the thicker, the busier the redder. */
function drawNodes(network, width) {
  const { at, height } = placeNodes(network, width), { devices, hosts, columns } = network;
  const picture = shape("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Hosts, switches and links, by how busy the step keeps them" });
  const rates = network.cables.map((cable) => Math.max(cable[4], cable[5])), least = Math.min(...rates), most = Math.max(...rates);
  const thickness = (rate) => (most > least ? 1.2 + 4 * Math.log(rate / least) / Math.log(most / least) : 2);
  for (const cable of [...network.cables].sort((one, other) => Math.max(one[6], one[7]) - Math.max(other[6], other[7]))) {
    const [from, to] = [at[cable[0]], at[cable[1]]], busy = Math.max(cable[6], cable[7]);
    const bend = cable[1] < devices && columns.home[cable[0]] === columns.home[cable[1]] ? Math.min(26, 6 + Math.abs(to[0] - from[0]) / 4) : 0;
    const path = `M${from[0]} ${from[1]} Q${(from[0] + to[0]) / 2} ${(from[1] + to[1]) / 2 + 2 * bend} ${to[0]} ${to[1]}`;
    picture.append(withTip(shape("path", { d: path, fill: "none", stroke: busy > 0 ? heatColor(0.15 + 0.85 * busy) : "#8a93a0", "stroke-width": thickness(Math.max(cable[4], cable[5])).toFixed(1), "stroke-opacity": busy > 0 ? 1 : 0.45 }), () => describeCable(network, cable)));
  }
  const named = columns.nodes.length - devices <= 80;
  for (let node = columns.nodes.length - 1; node >= 0; node--) {
    const [x, y] = at[node];
    if (node < devices) {
      picture.append(withTip(shape("rect", { x: x - 7, y: y - 7, width: 14, height: 14, rx: 2, fill: heatColor(columns.busy[node]), stroke: "#6a7380" }), () => describeDevice(network, node)));
      continue;
    }
    const isHost = node < devices + hosts, name = columns.nodes[node];
    const body = isHost ? shape("rect", { x: x - 16, y: y - 8, width: 32, height: 16, rx: 3, class: "node" })
      : shape("ellipse", { cx: x, cy: y, rx: 20, ry: 9, class: "node" });
    picture.append(withTip(body, () => name));
    if (named) {
      const label = name.length > 14 ? `${name.slice(0, 6)}…${name.slice(-6)}` : name;
      picture.append(shape("text", { x, y: y - 12, "text-anchor": "middle" }, label));
    }
  }
  return picture;
}

const METRICS = [["busy", "compute"], ["full", "memory"], ["link", "busiest link"], ["calls", "waiting for its team"]];

/** A square for each device, host after host. */
function drawHeat(canvas, network, metric) {
  const { devices, columns } = network, width = canvas.parentElement.clientWidth || 900;
  const cell = devices > 4096 ? 8 : devices > 1024 ? 11 : devices > 128 ? 16 : 24;
  const own = new Map();
  for (let k = 0; k < devices; k++) own.set(columns.home[k], [...(own.get(columns.home[k]) || []), k]);
  const places = [];
  let x = 0, y = 0;
  for (const each of own.values()) {
    const room = Math.min(each.length, Math.floor(width / cell)) * cell;
    if (x && x + room > width) { x = 0; y += cell + 5; }
    each.forEach((device) => {
      if (x + cell > width) { x = 0; y += cell; }
      places.push([device, x, y]);
      x += cell;
    });
    x += 7;
  }
  const context = sharpen(canvas, width, y + cell + 2);
  context.clearRect(0, 0, width, y + cell + 2);
  for (const [device, left, top] of places) {
    context.fillStyle = heatColor(columns[metric][device]);
    context.fillRect(left, top, cell - 1, cell - 1);
  }
  canvas.places = places;
  canvas.cell = cell;
}

function drawHeatLegend() {
  const legend = make("div", { className: "legend" });
  for (const share of [0, 0.25, 0.5, 0.75, 1]) {
    const swatch = make("span", { className: "swatch" });
    swatch.style.background = heatColor(share);
    legend.append(make("span", { className: "item" }, swatch, `${100 * share} %`));
  }
  return legend;
}

/** The section of the cluster. */
async function drawCluster(plan) {
  showSection("cluster", Boolean(plan.network));
  if (!plan.network) return;
  const { nodes, tier, home, type, busy, calls, full, link } = plan.network;
  const network = { ...plan.network, columns: await readColumns({ nodes, tier, home, type, busy, calls, full, link }) };
  const body = byId("cluster-body");
  body.replaceChildren();
  if (network.cables.length) {
    const frame = make("figure", { className: "network" });
    frame.style.margin = "0";
    frame.append(drawNodes(network, Math.max(640, Math.min(1280, body.clientWidth || 1000))));
    body.append(frame, make("p", { className: "quietly" }, "Squares are devices by how busy they are, lines links: the wider the thicker, the busier the redder."));
  }
  const canvas = make("canvas", { role: "img" }), choice = make("select", { id: "heat-choice" }, ...METRICS.map(([name, text]) => make("option", { value: name }, text)));
  const stage = make("div", { className: "stage" }, canvas);
  body.append(make("div", { className: "controls" }, make("label", {}, "Map of devices by ", choice)), stage, drawHeatLegend(), ...plan.tables.device.map(makeFoldedTable), ...plan.tables.link.map(makeFoldedTable));
  const show = () => {
    canvas.setAttribute("aria-label", `Devices, host after host, by ${choice.selectedOptions[0].text}`);
    drawHeat(canvas, network, choice.value);
  };
  choice.addEventListener("change", show);
  canvas.addEventListener("mousemove", (event) => {
    const box = canvas.getBoundingClientRect(), x = event.clientX - box.left, y = event.clientY - box.top;
    const found = canvas.places.find(([, left, top]) => x >= left && x < left + canvas.cell && y >= top && y < top + canvas.cell);
    showTip(event, found ? describeDevice(network, found[0]) : "");
  });
  canvas.addEventListener("mouseleave", hideTip);
  show();
  RESIZED.push(show);
}
