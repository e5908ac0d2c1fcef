"use strict";
// Which part of the plan runs which piece of the model: a strip for each phase of the step.

const STRIP = 30;

function drawStrip(canvas, strip) {
  const width = canvas.parentElement.clientWidth || 900, context = sharpen(canvas, width, STRIP);
  let from = 0;
  strip.edges = [];
  for (let k = 0; k < strip.part.length; k++) {
    const left = from / strip.ops * width, right = (from + strip.count[k]) / strip.ops * width;
    context.fillStyle = partColor(strip.part[k]);
    context.fillRect(left, 0, Math.max(1, right - left - (right - left > 3 ? 0.5 : 0)), STRIP);
    if (right - left > 46) {
      context.fillStyle = "#0c0f12";
      context.font = "12px system-ui, sans-serif";
      context.textBaseline = "middle";
      context.fillText(`part ${strip.part[k]}`, left + 5, STRIP / 2);
    }
    from += strip.count[k];
    strip.edges.push(right);
  }
}

/** The section of the model's parts. */
async function drawModel(plan) {
  showSection("model", Boolean(plan.strips && plan.strips.length));
  if (!plan.strips) return;
  const body = byId("model-body"), strips = [];
  body.replaceChildren();
  for (const each of plan.strips) {
    const strip = { ...each, ...await readColumns({ part: each.part, count: each.count, where: each.where }) };
    const canvas = make("canvas", { role: "img" });
    const parts = new Set(strip.part);
    canvas.setAttribute("aria-label", `${strip.phase}: ${plural(strip.ops, "op")} in ${plural(parts.size, "part")}`);
    body.append(make("h3", {}, `${strip.phase}, ${plural(strip.ops, "op")}`), make("div", { className: "stage" }, canvas));
    canvas.addEventListener("mousemove", (event) => {
      const x = event.clientX - canvas.getBoundingClientRect().left, k = strip.edges.findIndex((edge) => x < edge);
      showTip(event, k < 0 ? "" : `part ${strip.part[k]}\n${strip.where[k]}\n${plural(strip.count[k], "op")}`);
    });
    canvas.addEventListener("mouseleave", hideTip);
    strips.push([canvas, strip]);
  }
  const isWhole = plan.strips.every((each) => each.whole);
  const note = "The ops of the step in the order of the model, each coloured by the part of the plan that runs it.";
  body.append(make("p", { className: "quietly" }, isWhole ? note : `${note} Of very many pieces some are shown.`), ...plan.tables.part.map((each) => (each.rows.length > 24 ? makeFoldedTable(each) : makeTable(each))));
  const show = () => strips.forEach(([canvas, strip]) => drawStrip(canvas, strip));
  show();
  RESIZED.push(show);
}
