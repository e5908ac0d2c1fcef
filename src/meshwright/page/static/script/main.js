"use strict";
// Puts the page together: the first screen at once, the rest when its columns are there.

const RESIZED = [];
const STATE = { plan: 0, view: null, ready: false };

function fillNavigation() {
  const nav = byId("sections");
  for (const section of document.querySelectorAll("main > section[id]")) {
    if (section.id === "summary") continue;
    nav.append(make("a", { href: `#${section.id}`, id: `to-${section.id}` }, section.querySelector("h2").textContent));
  }
}

function fillPlans() {
  const choice = byId("plan-choice");
  PAGE.plans.forEach((plan, k) => choice.append(make("option", { value: String(k) }, plan.name)));
  byId("plan-label").hidden = PAGE.plans.length < 2;
  choice.addEventListener("change", () => showPlan(Number(choice.value)));
}

/** What needs no columns. */
function drawFirst(plan) {
  drawSummary(plan);
  drawTables(plan);
  for (const [id, isThere] of [
    ["timeline", plan.timelines.length > 0], ["memory", plan.memory], ["cluster", plan.network],
    ["model", plan.strips], ["search", plan.search.history.length || plan.search.others.length || Object.keys(plan.search.methods).length],
  ]) showSection(id, Boolean(isThere));
}

function tellReady(isReady) {
  STATE.ready = isReady;
  document.body.dataset.ready = String(isReady);
}

async function drawRest(plan) {
  tellReady(false);
  RESIZED.length = 0;
  clearCharts();
  STATE.view = await drawTimeline(plan);
  if (STATE.view) RESIZED.push(() => STATE.view.layout());
  performance.mark("meshwright-timeline");
  await drawMemory(plan);
  await drawCluster(plan);
  await drawModel(plan);
  drawSearch(plan);
  tellReady(true);
  performance.mark("meshwright-ready");
}

function showPlan(place) {
  STATE.plan = place;
  drawFirst(PAGE.plans[place]);
  return drawRest(PAGE.plans[place]);
}

function redraw() {
  RESIZED.forEach((each) => each());
  for (const chart of CHARTS) chart.setSize({ width: Math.max(280, chart.frame.clientWidth), height: chart.height });
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").setAttribute("aria-pressed", String(theme === "dark"));
  if (STATE.ready) {
    redraw();
  }
}

function listenToPage() {
  let width = window.innerWidth;
  window.addEventListener("resize", () => {
    if (window.innerWidth !== width) { width = window.innerWidth; redraw(); }
  });
  const isDark = window.matchMedia("(prefers-color-scheme: dark)");
  byId("theme").setAttribute("aria-pressed", String(isDark.matches));
  byId("theme").addEventListener("click", () => setTheme(byId("theme").getAttribute("aria-pressed") === "true" ? "light" : "dark"));
  isDark.addEventListener("change", () => { if (!document.documentElement.dataset.theme && STATE.ready) redraw(); });
  let theme = "";
  const opened = [];
  window.addEventListener("beforeprint", () => {
    theme = document.documentElement.dataset.theme || "";
    document.documentElement.dataset.theme = "light";
    for (const folded of document.querySelectorAll("details:not([open])")) {
      if (Number(folded.dataset.rows) > 40) continue;
      folded.fill();
      folded.open = true;
      opened.push(folded);
    }
    if (STATE.view) STATE.view.paint();
    CHARTS.forEach((chart) => chart.redraw(false));
  });
  window.addEventListener("afterprint", () => {
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    opened.splice(0).forEach((folded) => { folded.open = false; });
    if (STATE.view) STATE.view.draw();
    CHARTS.forEach((chart) => chart.redraw(false));
  });
}

fillNavigation();
fillPlans();
drawFirst(PAGE.plans[0]);
drawPlans();
listenToPage();
byId("footer").textContent = "Made by Meshwright. This file loads nothing. Curves by uPlot 1.6.32 (MIT licence).";
performance.mark("meshwright-first");
document.addEventListener("DOMContentLoaded", () => drawRest(PAGE.plans[0]));
