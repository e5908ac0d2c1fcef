"use strict";
// The first screen, and plans side by side: drawn before any column is unpacked.

function drawSummary(plan) {
  const summary = plan.summary;
  byId("title").textContent = summary.title;
  document.title = `${summary.title}: Meshwright plan`;
  byId("figures").replaceChildren(...summary.figures.map((each) => make(
    "div", {},
    make("dt", {}, each.name),
    make("dd", { className: "value" }, each.value),
    make("dd", { className: "note" }, each.note),
  )));
  byId("facts").replaceChildren(...summary.facts.flatMap(([name, text]) => [
    make("dt", {}, name), make("dd", {}, text),
  ]));
  drawLimits(summary);
  const commands = byId("commands");
  commands.replaceChildren();
  if (summary.commands.length) {
    commands.append(make("h3", {}, "Next"), make("pre", { tabIndex: 0 }, summary.commands.join("\n")));
  }
}

function drawLimits(summary) {
  const rows = summary.limits.map((each) => {
    const fill = make("div", { className: "fill" });
    fill.style.width = `${100 * each.share}%`;
    fill.style.background = causeColor(each.cause);
    const where = each.where ? ` (${each.where})` : "";
    return make(
      "div", { className: "share" },
      make("span", { className: "part" }, each.part),
      make("span", {}, `${each.cause}${where}: ${each.text}`),
      make("div", { className: "track" }, fill),
    );
  });
  const of = summary.anchor ? `the busiest device, ${summary.anchor}` : "the critical path";
  if (rows.length) rows.push(make("p", { className: "quietly" }, `Shares of the step, by ${of}; they add up to it.`));
  else rows.push(make("p", {}, summary.fits ? "Nothing takes any time." : "There is no plan that fits."));
  byId("limits").replaceChildren(...rows);
}

/** A bar for each plan, of what its step is spent on, with its bound as a line. */
function drawPlans() {
  showSection("plans", PAGE.plans.length > 1);
  if (PAGE.plans.length < 2) return;
  const longest = Math.max(...PAGE.steps.map((each) => Math.max(each.predicted || 0, each.measured || 0)), 1e-30);
  const rows = [];
  const shown = new Set();
  const addRow = (name, seconds, parts, bound) => {
    const stack = make("div", { className: "stack" });
    for (const [cause, size] of parts) {
      const piece = make("div");
      piece.style.width = `${100 * size / longest}%`;
      piece.style.background = cause ? causeColor(cause) : "var(--quiet)";
      piece.addEventListener("mousemove", (event) => showTip(event, `${cause || name}: ${formatSeconds(size)}`));
      piece.addEventListener("mouseleave", hideTip);
      if (cause) shown.add(cause);
      stack.append(piece);
    }
    if (bound) {
      const mark = make("div", { className: "mark" });
      mark.style.left = `${100 * bound / longest}%`;
      stack.append(mark);
    }
    rows.push(make("div", { className: "plan-row" }, make("span", {}, name), stack,
      make("span", {}, seconds === null ? "no plan fits" : formatSeconds(seconds))));
  };
  for (const each of PAGE.steps) {
    addRow(each.name, each.predicted, Object.entries(each.shares), each.bound);
    if (each.measured !== null) addRow(`${each.name}, measured`, each.measured, [["", each.measured]], 0);
  }
  const legend = make("div", { className: "legend" });
  for (const cause of shown) {
    const swatch = make("span", { className: "swatch" });
    swatch.style.background = causeColor(cause);
    legend.append(make("span", { className: "item" }, swatch, cause));
  }
  const note = make("p", { className: "quietly" }, "What each step is spent on; the upright line is the bound.");
  byId("plans-body").replaceChildren(...rows, legend, note, makeTable(PAGE.compared));
}

/** Sections that are tables alone. */
function drawTables(plan) {
  for (const name of ["why", "whatif", "run"]) {
    const tables = plan.tables[name] || [];
    showSection(name, tables.length > 0);
    byId(`${name}-body`).replaceChildren(...tables.map((each) => each.rows.length > 60 ? makeFoldedTable(each) : makeTable(each)));
  }
}
