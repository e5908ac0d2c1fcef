"use strict";
// What people do with the timeline: mouse, touch, keys, search and filters.

const KEY_HELP = "Arrow keys: next bar and next row. + and -: zoom. A and D: earlier and later. W and S: rows. "
  + "N and P: along the critical path. C: show the critical path. /: search. Enter: next match. 0: all.";

const KEYS = {
  ArrowRight: (view) => view.walk(1), ArrowLeft: (view) => view.walk(-1),
  ArrowDown: (view) => view.climb(1), ArrowUp: (view) => view.climb(-1),
  "+": (view) => view.zoom(0.7), "=": (view) => view.zoom(0.7), "-": (view) => view.zoom(1 / 0.7),
  a: (view) => view.pan((view.from - view.to) / 5), d: (view) => view.pan((view.to - view.from) / 5),
  w: (view) => view.scroll(-3), s: (view) => view.scroll(3),
  n: (view) => view.follow(1), p: (view) => view.follow(-1),
  0: (view) => view.zoom(Infinity), Enter: (view) => view.next(),
};

function listenToPointer(view) {
  const canvas = view.canvas;
  let dragged = null;
  const at = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  const pixel = () => (view.to - view.from) / (view.width - view.gutter);
  canvas.addEventListener("wheel", (event) => {
    if (event.ctrlKey || event.metaKey) {
      event.preventDefault();
      const [x] = at(event);
      view.zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) / 150), view.from + Math.max(0, x - view.gutter) * pixel());
    } else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      event.preventDefault();
      view.pan((event.deltaX || event.deltaY) * pixel());
    } else if (view.scroll(Math.sign(event.deltaY) * 2)) event.preventDefault();
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    dragged = { x: event.clientX, y: event.clientY, top: view.top, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    if (dragged) {
      if (Math.abs(event.clientX - dragged.x) + Math.abs(event.clientY - dragged.y) > 4 || dragged.moved) {
        dragged.moved = true;
        view.pan((dragged.x - event.clientX) * pixel());
        dragged.x = event.clientX;
        view.scroll(dragged.top + Math.round((dragged.y - event.clientY) / ROW) - view.top);
        hideTip();
      }
      return;
    }
    view.hovered = view.hit(...at(event));
    showTip(event, view.hovered ? view.describe(view.hovered).join("\n") : "");
    view.draw();
  });
  canvas.addEventListener("pointerup", (event) => {
    if (dragged && !dragged.moved) view.select(view.hit(...at(event)));
    dragged = null;
  });
  canvas.addEventListener("pointerleave", () => { view.hovered = null; hideTip(); view.draw(); });
  canvas.addEventListener("dblclick", (event) => {
    const mark = view.hit(...at(event));
    if (mark) view.reveal(mark);
  });
}

function listenToKeys(view, parts) {
  view.canvas.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey) return;
    const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
    if (key === "/") parts.search.focus();
    else if (key === "c") parts.path.click();
    else if (KEYS[key]) KEYS[key](view);
    else return;
    event.preventDefault();
  });
}

function makeButton(text, act, label = "") {
  const button = make("button", { type: "button" }, text);
  if (label) button.setAttribute("aria-label", label);
  button.addEventListener("click", act);
  return button;
}

function makeCheck(text, isOn, act, color = "") {
  const box = make("input", { type: "checkbox", checked: isOn });
  box.addEventListener("change", () => act(box.checked));
  const label = make("label", {}, box);
  if (color) {
    const swatch = make("span", { className: "swatch" });
    swatch.style.background = color;
    label.append(swatch);
  }
  label.append(text);
  return label;
}

/** The search field: names of bars. */
function makeSearch(view, told) {
  const search = make("input", { type: "search", id: "bar-search", placeholder: "op, tensor, device…" });
  const apply = () => {
    view.query = search.value;
    view.choose();
    told.textContent = view.query ? `${plural(view.countChosen(), "bar")} match` : "";
  };
  search.addEventListener("input", apply);
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !view.next()) told.textContent = "no bar matches";
    if (event.key === "Escape") { search.value = ""; apply(); view.canvas.focus(); }
  });
  return search;
}

function makeControls(view, plan) {
  const told = make("span", { className: "quietly", role: "status", id: "timeline-told" });
  const search = makeSearch(view, told);
  const rows = make("input", { type: "search", id: "row-search", placeholder: "host0, link…" });
  rows.addEventListener("input", () => { view.trackQuery = rows.value; view.listRows(); });
  const path = makeButton("Critical path", () => {
    view.showsPath = !view.showsPath;
    path.setAttribute("aria-pressed", String(view.showsPath));
    view.draw();
  });
  path.id = "show-path";
  path.setAttribute("aria-pressed", "false");
  const first = make(
    "div", { className: "controls" },
    makeButton("−", () => view.zoom(1 / 0.6), "Zoom out"), makeButton("+", () => view.zoom(0.6), "Zoom in"),
    makeButton("All", () => view.zoom(Infinity), "Show the whole step"),
    make("label", {}, "Search bars ", search), makeButton("Next match", () => view.next()), told,
  );
  const second = make(
    "div", { className: "controls" },
    path, makeButton("‹ before", () => view.follow(-1), "Before on the critical path"),
    makeButton("next ›", () => view.follow(1), "Next on the critical path"),
    make("label", {}, "Rows named ", rows),
    makeCheck("devices", true, (isOn) => { view.showsDevices = isOn; view.listRows(); }),
    makeCheck("links", true, (isOn) => { view.showsLinks = isOn; view.listRows(); }),
  );
  if (plan.timelines.length > 1) first.prepend(makeTimelineChoice(view, plan));
  return { first, second, search, path, told };
}

/** Chooses between what was predicted and what was measured. */
function makeTimelineChoice(view, plan) {
  const choice = make("select", { id: "timeline-choice" }, ...plan.timelines.map((each, k) => make("option", { value: String(k) }, each.title)));
  choice.addEventListener("change", async () => {
    await view.open(Number(choice.value));
    drawTimelineParts(view, plan, Number(choice.value));
  });
  return make("label", {}, "Step ", choice);
}

/** The kinds of bars that there are, each of which can be hidden. */
function makeLegend(view) {
  const present = new Set(view.bars.cause);
  const legend = make("div", { className: "legend", role: "group" });
  legend.setAttribute("aria-label", "Kinds of bars that are shown");
  for (const cause of [...present].sort((a, b) => a - b)) {
    legend.append(makeCheck(PAGE.causes[cause], true, (isOn) => {
      if (isOn) view.hidden.delete(cause);
      else view.hidden.add(cause);
      view.choose();
    }, CAUSE_COLORS[cause]));
  }
  return legend;
}

function drawTimelineParts(view, plan, place) {
  const data = plan.timelines[place];
  byId("timeline-legend").replaceChildren(makeLegend(view));
  byId("timeline-tables").replaceChildren(...data.tables.map(makeFoldedTable));
  byId("timeline-remarks").textContent = data.remarks.length
    ? `Coarser than the step: ${data.remarks.join("; ")}.` : "";
}

/** The section of the timeline; returns what it shows. */
async function drawTimeline(plan) {
  showSection("timeline", plan.timelines.length > 0);
  if (!plan.timelines.length) return null;
  const view = new Timeline(plan);
  const stage = make("div", { className: "stage" }, view.canvas);
  const detail = make("div", { className: "detail", id: "timeline-detail", role: "status" }, "Select a bar to see what it is.");
  const parts = makeControls(view, plan);
  byId("timeline-body").replaceChildren(
    parts.first, parts.second, make("div", { id: "timeline-legend" }), stage, detail,
    make("p", { className: "quietly", id: "timeline-keys" }, `Drag to move, Ctrl and the wheel to zoom. ${KEY_HELP}`),
    make("p", { className: "quietly", id: "timeline-remarks" }), make("div", { id: "timeline-tables" }),
  );
  await view.open(0);
  drawTimelineParts(view, plan, 0);
  view.listeners.push(() => {
    detail.textContent = view.selected ? view.describe(view.selected).join(" · ") : "Select a bar to see what it is.";
    parts.path.setAttribute("aria-pressed", String(view.showsPath));
  });
  listenToPointer(view);
  listenToKeys(view, parts);
  return view;
}
