"use strict";
// Makes elements. Texts come from graphs that nobody has looked at: they are only ever text nodes.

/** An element with properties and children; a text among these is shown as it is. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

function byId(id) {
  return document.getElementById(id);
}

function plural(count, noun) {
  return `${count.toLocaleString("en-US")} ${noun}${count === 1 ? "" : "s"}`;
}

/** Four digits, and commas between thousands. */
function formatNumber(value) {
  const rounded = Number(value.toPrecision(4));
  return Math.abs(rounded) >= 1000 ? Math.round(rounded).toLocaleString("en-US") : String(rounded);
}

function formatSeconds(seconds) {
  for (const [scale, unit] of [[1, "s"], [1e-3, "ms"], [1e-6, "us"]]) {
    if (Math.abs(seconds) >= scale) return `${formatNumber(seconds / scale)} ${unit}`;
  }
  return seconds === 0 ? "0 s" : `${formatNumber(seconds * 1e9)} ns`;
}

function formatBytes(size) {
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (Math.abs(size) < 1024) return `${formatNumber(size)} ${unit}`;
    size /= 1024;
  }
  return `${formatNumber(size)} TiB`;
}

function formatRate(rate) {
  for (const [scale, unit] of [[1e12, "TB/s"], [1e9, "GB/s"], [1e6, "MB/s"], [1e3, "kB/s"]]) {
    if (rate >= scale) return `${formatNumber(rate / scale)} ${unit}`;
  }
  return `${formatNumber(rate)} B/s`;
}

function formatShare(share) {
  return `${formatNumber(Number((100 * share).toPrecision(3)))} %`;
}

// By what is told of in `Cause`, in its order; readable on light and on dark.
const CAUSE_COLORS = [
  "#4c8fe0", "#8c6bd1", "#c06bc9", "#2f9e68", "#8794a3", "#e8832a", "#d9484b", "#b83b6c",
  "#e57fa0", "#c29a1f", "#8f8a2c", "#cf6f52", "#9aa3ad", "#7f8994", "#b0b7bf", "#96705a",
  "#c4c9cf", "#b58f2d",
];
const KIND_COLORS = [
  "#4c8fe0", "#8c6bd1", "#8794a3", "#5f7fa8", "#d9484b", "#c29a1f", "#2f9e68", "#e8832a",
];

function causeColor(name) {
  const place = PAGE.causes.indexOf(name);
  return place < 0 ? "#9aa3ad" : CAUSE_COLORS[place % CAUSE_COLORS.length];
}

/** Colours of parts: hues that are far apart for neighbours. */
function partColor(part) {
  return `hsl(${Math.round((part * 137.508 + 210) % 360)} 52% ${part % 2 ? 46 : 58}%)`;
}

/** From no use to full use; told apart by lightness too. */
function heatColor(share) {
  const at = Math.max(0, Math.min(1, share));
  const stops = [[225, 230, 236], [248, 200, 110], [226, 112, 54], [150, 24, 50]];
  const place = at * (stops.length - 1), low = Math.min(stops.length - 2, Math.floor(place));
  const mix = stops[low].map((value, k) => Math.round(value + (place - low) * (stops[low + 1][k] - value)));
  return `rgb(${mix.join(",")})`;
}

function css(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function makeTable(table) {
  const head = make("tr");
  table.heads.forEach((text, k) => {
    head.append(make("th", { scope: "col", className: table.right[k] ? "right" : "" }, text || "\u00a0"));
  });
  const body = make("tbody");
  for (const row of table.rows) {
    const line = make("tr");
    row.forEach((text, k) => {
      const cell = make(k === 0 ? "th" : "td", { className: table.right[k] ? "right" : "" }, text);
      if (k === 0) cell.scope = "row";
      line.append(cell);
    });
    body.append(line);
  }
  const made = make("table", { className: "data" }, make("caption", {}, table.title), make("thead", {}, head), body);
  const frame = make("div", { className: "scroll", tabIndex: 0, role: "region" }, made);
  frame.setAttribute("aria-label", table.title);
  if (table.note) frame.append(make("p", { className: "quietly" }, table.note));
  return frame;
}

/** A table behind a summary, made when it is first opened. */
function makeFoldedTable(table) {
  const folded = make("details", {}, make("summary", {}, `As a table: ${table.title}`));
  folded.dataset.rows = table.rows.length;
  folded.fill = () => {
    if (!folded.querySelector("table")) folded.append(makeTable(table));
  };
  folded.addEventListener("toggle", () => { if (folded.open) folded.fill(); });
  return folded;
}

/** Shows or hides a section and what leads to it. */
function showSection(id, isShown) {
  byId(id).hidden = !isShown;
  const link = byId(`to-${id}`);
  if (link) link.hidden = !isShown;
}

function showTip(event, text) {
  const tip = byId("tip");
  tip.textContent = text;
  tip.hidden = !text;
  if (!text) return;
  const left = Math.min(event.clientX + 14, window.innerWidth - tip.offsetWidth - 8);
  const above = event.clientY - tip.offsetHeight - 10;
  tip.style.left = `${Math.max(4, left)}px`;
  tip.style.top = `${above > 4 ? above : event.clientY + 18}px`;
}

function hideTip() {
  byId("tip").hidden = true;
}

/** A canvas as sharp as the screen; returns its context, in pixels of the page. */
function sharpen(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}
