"use strict";
// The timeline: which rows and which ticks are seen, and how they are drawn.

const ROW = 20, TOP = 22, MOST_ROWS = 26;

class Timeline {
  constructor(plan) {
    this.plan = plan;
    this.listeners = [];
    this.waits = false;
    this.painter = new Painter();
    this.spare = document.createElement("canvas");
    this.canvas = make("canvas", { tabIndex: 0, role: "application" });
    this.canvas.setAttribute("aria-roledescription", "timeline");
    this.canvas.setAttribute("aria-describedby", "timeline-keys");
  }

  /** Unpacks one of the plan's timelines and shows all of it. */
  async open(place) {
    const data = this.plan.timelines[place];
    const [bars, path, labels, names, sets] = await Promise.all([
      readBars(data.sets, data.counts), readBars(data.path, [data.path.start.count]),
      readColumn(data.labels), readColumn(data.names), readColumn(data.tracks),
    ]);
    Object.assign(this, { data, bars, path, labels, names, sets });
    this.firstLink = data.links.length ? data.links[0] : names.length;
    this.hidden = new Set();
    this.query = "";
    this.trackQuery = "";
    this.showsDevices = this.showsLinks = true;
    this.showsPath = false;
    this.selected = null;
    this.hovered = null;
    this.whole = Math.max(1, data.ticks);
    this.from = 0;
    this.to = this.whole;
    this.top = 0;
    this.listRows();
    this.canvas.setAttribute("aria-label", `Timeline of ${plural(names.length, "row")} over ${formatSeconds(data.step)}`);
  }

  /** The rows that are not filtered out; row -1 is the critical path. */
  listRows() {
    const wanted = this.trackQuery.toLowerCase();
    this.rows = [-1];
    for (let k = 0; k < this.names.length; k++) {
      const isLink = k >= this.firstLink;
      if (!(isLink ? this.showsLinks : this.showsDevices)) continue;
      if (!wanted || this.names[k].toLowerCase().includes(wanted)) this.rows.push(k);
    }
    this.rowOf = new Map(this.rows.map((track, row) => [track, row]));
    this.shown = Math.min(this.rows.length, MOST_ROWS);
    this.top = Math.max(0, Math.min(this.top, this.rows.length - this.shown));
    this.layout();
  }

  /** Chooses the bars whose kinds are shown and whose names match. */
  choose() {
    const query = this.query.toLowerCase();
    const fits = Uint8Array.from(this.labels, (label) => Number(!query || label.toLowerCase().includes(query)));
    for (const bars of [this.bars, this.path]) {
      for (let k = 0; k < bars.label.length; k++) {
        bars.chosen[k] = fits[bars.label[k]] & Number(!this.hidden.has(bars.cause[k]));
      }
      sumCovered(bars);
    }
    this.draw();
  }

  /** How many bars match, those of equal devices counted. */
  countChosen() {
    const counts = this.data.counts.map((_, set) => {
      let found = 0;
      for (let k = this.bars.first[set]; k < this.bars.first[set + 1]; k++) found += this.bars.chosen[k];
      return found;
    });
    return this.rows.reduce((sum, track) => sum + (track < 0 ? 0 : counts[this.sets[track]]), 0);
  }

  layout() {
    const width = this.canvas.clientWidth || this.canvas.parentElement?.clientWidth || 900;
    this.width = width;
    this.gutter = Math.round(Math.min(190, Math.max(90, width * 0.17)));
    this.height = TOP + this.shown * ROW + 2;
    this.context = sharpen(this.canvas, width, this.height);
    this.draw();
  }

  draw() {
    if (this.waits) return;
    this.waits = true;
    requestAnimationFrame(() => { this.waits = false; this.paint(); });
  }

  /** The bars and the set of a row. */
  barsOf(track) {
    return track < 0 ? [this.path, 0] : [this.bars, this.sets[track]];
  }

  /** The row at a place of the screen: the critical path stays on top. */
  rowAt(line) {
    return line === 0 ? 0 : this.top + line;
  }

  area(line) {
    return { x: this.gutter, y: TOP + line * ROW + 2, width: this.width - this.gutter, height: ROW - 4 };
  }

  paint() {
    const { context, width, height, gutter } = this;
    const tick = this.data.tick;
    context.clearRect(0, 0, width, height);
    drawAxis(context, gutter, width - gutter, height, this.from * tick, this.to * tick);
    this.paintRows();
    if (this.showsPath) this.paintPath();
    for (const mark of [this.hovered, this.selected]) if (mark) this.paintMark(mark, mark === this.selected);
    this.paintNames();
  }

  /** The rows that are seen; those of devices that do the same are drawn once and copied. */
  paintRows() {
    const lines = new Map();
    for (let line = 0; line < this.shown; line++) {
      const track = this.rows[this.rowAt(line)], key = track < 0 ? -1 : this.sets[track];
      if (!lines.has(key)) lines.set(key, []);
      lines.get(key).push(line);
    }
    this.context.imageSmoothingEnabled = false;
    for (const [key, own] of lines) {
      const bars = key < 0 ? this.path : this.bars, set = Math.max(0, key), first = this.area(own[0]);
      if (own.length === 1) {
        this.paintRow(this.context, bars, set, first);
        continue;
      }
      const area = { ...first, x: 0, y: 0 }, context = sharpen(this.spare, area.width, area.height);
      context.imageSmoothingEnabled = false;
      this.paintRow(context, bars, set, area);
      for (const line of own) {
        const place = this.area(line);
        this.context.drawImage(this.spare, place.x, place.y, place.width, place.height);
      }
    }
  }

  paintRow(context, bars, set, area) {
    const labels = [];
    this.painter.paintRow(context, bars, set, area, this.from, this.to, (bar, x, room) => labels.push([bar, x, room]));
    context.font = "11px system-ui, sans-serif";
    context.textBaseline = "middle";
    context.fillStyle = "#0c0f12";
    for (const [bar, x, room] of labels) {
      const letters = Math.floor((room - 6) / 6.6), text = this.labels[bars.label[bar]];
      const shown = text.length > letters ? `${text.slice(0, Math.max(1, letters - 1))}…` : text;
      context.fillText(shown, x + 3, area.y + area.height / 2 + 0.5);
    }
  }

  paintNames() {
    const { context } = this;
    const colors = { text: css("--text"), quiet: css("--quiet"), line: css("--line") };
    context.fillStyle = css("--back");
    context.fillRect(0, TOP, this.gutter - 1, this.height);
    context.font = "12px system-ui, sans-serif";
    context.textBaseline = "middle";
    for (let line = 0; line < this.shown; line++) {
      const track = this.rows[this.rowAt(line)];
      const name = track < 0 ? "critical path" : this.names[track];
      context.fillStyle = track >= this.firstLink ? colors.quiet : colors.text;
      context.fillText(this.fit(name), 4, TOP + line * ROW + ROW / 2);
      context.strokeStyle = colors.line;
      context.beginPath();
      context.moveTo(0, TOP + (line + 1) * ROW + 0.5);
      context.lineTo(line === 0 ? this.width : this.gutter, TOP + (line + 1) * ROW + 0.5);
      context.stroke();
    }
    if (this.rows.length > this.shown) this.paintScrollbar();
  }

  /** A name with its middle left out where it is too long for the margin. */
  fit(name) {
    const most = Math.floor((this.gutter - 8) / 6.4);
    if (name.length <= most) return name;
    const half = Math.floor((most - 1) / 2);
    return `${name.slice(0, half)}…${name.slice(name.length - half)}`;
  }

  paintScrollbar() {
    const room = this.height - TOP, part = this.shown / this.rows.length;
    this.context.fillStyle = css("--quiet");
    this.context.globalAlpha = 0.5;
    this.context.fillRect(this.width - 5, TOP + room * this.top / this.rows.length, 4, Math.max(12, room * part));
    this.context.globalAlpha = 1;
  }

  x(tick) {
    return this.gutter + (tick - this.from) / (this.to - this.from) * (this.width - this.gutter);
  }

  /** Where a bar is on the screen; null: it is not seen. */
  place(track, bars, bar) {
    const row = this.rowOf.get(track);
    if (row === undefined) return null;
    const line = row === 0 ? 0 : row - this.top;
    if ((row > 0 && line < 1) || line >= this.shown) return null;
    const left = Math.max(this.gutter, this.x(bars.start[bar])), right = Math.min(this.width, this.x(bars.finish[bar]));
    if (right < this.gutter || left > this.width) return null;
    return { left, right, y: TOP + line * ROW };
  }

  /** Outlines the bars of the critical path where they run, and joins one to the next. */
  paintPath() {
    const { context, path } = this;
    context.strokeStyle = css("--text");
    context.lineWidth = 1.2;
    context.beginPath();
    let before = null, last = "";
    for (let k = firstAt(path.finish, this.from, 0, path.finish.length); k < path.start.length && path.start[k] <= this.to; k++) {
      const at = path.track[k] ? this.place(path.track[k] - 1, path, k) : null;
      if (!at) { before = null; continue; }
      const key = `${Math.round(at.left)} ${at.y} ${Math.round(at.right)}`;
      if (key === last) continue;
      last = key;
      if (at.right - at.left >= 3) context.rect(at.left + 0.5, at.y + 1.5, at.right - at.left - 1, ROW - 3);
      else {
        context.moveTo(at.left, at.y + ROW - 1.5);
        context.lineTo(at.right + 1, at.y + ROW - 1.5);
      }
      if (before && before.y !== at.y) {
        context.moveTo(before.right, before.y + ROW / 2);
        context.lineTo(at.left, at.y + ROW / 2);
      }
      before = at;
    }
    context.stroke();
    context.lineWidth = 1;
  }

  paintMark(mark, isSelected) {
    const [bars] = this.barsOf(mark.track), at = this.place(mark.track, bars, mark.bar);
    if (!at) return;
    this.context.strokeStyle = isSelected ? css("--focus") : css("--text");
    this.context.lineWidth = isSelected ? 3 : 1.5;
    this.context.strokeRect(at.left - 1, at.y + 1, Math.max(3, at.right - at.left + 2), ROW - 2);
    this.context.lineWidth = 1;
  }

  /** Shows the ticks around one, `factor` times as many as before. */
  zoom(factor, around = (this.from + this.to) / 2) {
    const least = Math.min(this.whole, 20);
    const span = Math.min(this.whole, Math.max(least, (this.to - this.from) * factor));
    const share = (around - this.from) / (this.to - this.from);
    this.from = around - share * span;
    this.to = this.from + span;
    this.pan(0);
  }

  pan(ticks) {
    const span = this.to - this.from;
    this.from = Math.max(0, Math.min(this.whole - span, this.from + ticks));
    this.to = this.from + span;
    this.draw();
  }

  scroll(rows) {
    const top = Math.max(0, Math.min(this.rows.length - this.shown, this.top + rows));
    if (top === this.top) return false;
    this.top = top;
    this.draw();
    return true;
  }

  /** The bar under a place of the canvas, or null. */
  hit(x, y) {
    const line = Math.floor((y - TOP) / ROW);
    if (x < this.gutter || line < 0 || line >= this.shown) return null;
    const track = this.rows[this.rowAt(line)], [bars, set] = this.barsOf(track);
    const pixel = (this.to - this.from) / (this.width - this.gutter);
    const bar = barAt(bars, set, this.from + (x - this.gutter) * pixel, 2 * pixel);
    return bar < 0 ? null : { track, bar };
  }

  select(mark, moves = false) {
    this.selected = mark;
    if (mark && moves) this.reveal(mark);
    this.listeners.forEach((listener) => listener());
    this.draw();
  }

  /** Moves the view so that a bar is seen, with what is around it. */
  reveal(mark) {
    const [bars] = this.barsOf(mark.track), row = this.rowOf.get(mark.track);
    const length = bars.length[mark.bar], middle = bars.start[mark.bar] + length / 2;
    let span = this.to - this.from;
    if (length > span / 2 || length < span / 400) span = Math.min(this.whole, Math.max(20, length * 12));
    this.from = Math.max(0, Math.min(this.whole - span, middle - span / 2));
    this.to = this.from + span;
    if (row > 0 && (row <= this.top || row >= this.top + this.shown)) {
      this.top = Math.max(0, Math.min(this.rows.length - this.shown, row - Math.floor(this.shown / 2)));
    }
    this.draw();
  }

  /** The bar of a row that begins at a tick. */
  barFrom(track, tick) {
    const [bars, set] = this.barsOf(track);
    const place = firstAt(bars.start, tick, bars.first[set], bars.first[set + 1]);
    return place < bars.first[set + 1] && bars.start[place] === tick ? place : -1;
  }

  /** The place on the critical path of what is selected, or of what is in the middle. */
  placeOnPath() {
    if (this.onPath !== undefined && this.selected === this.pathMark) return this.onPath;
    const [bars] = this.selected ? this.barsOf(this.selected.track) : [];
    const tick = this.selected ? bars.start[this.selected.bar] : this.from;
    return firstAt(this.path.start, tick, 0, this.path.start.length) - 1;
  }

  /** Selects the next bar of the critical path, or the one before. */
  follow(step) {
    const last = this.path.start.length - 1;
    if (last < 0) return;
    this.onPath = Math.max(0, Math.min(last, this.placeOnPath() + step));
    const track = this.path.track[this.onPath] - 1;
    const bar = track >= 0 && this.rowOf.has(track) ? this.barFrom(track, this.path.start[this.onPath]) : -1;
    this.pathMark = bar < 0 ? { track: -1, bar: this.onPath } : { track, bar };
    this.showsPath = true;
    this.select(this.pathMark, true);
  }

  /** Selects the next bar of a row, or the one before. */
  walk(step) {
    if (!this.selected) return this.selectAny(this.rows[this.rowAt(Math.min(1, this.shown - 1))]);
    const { track } = this.selected, [bars, set] = this.barsOf(track);
    for (let k = this.selected.bar + step; k >= bars.first[set] && k < bars.first[set + 1]; k += step) {
      if (bars.chosen[k]) return this.select({ track, bar: k }, true);
    }
    return undefined;
  }

  /** Selects a bar of another row at about the same time. */
  climb(step) {
    if (!this.selected) return this.selectAny(this.rows[0]);
    const [bars] = this.barsOf(this.selected.track), tick = bars.start[this.selected.bar];
    for (let row = this.rowOf.get(this.selected.track) + step; row >= 0 && row < this.rows.length; row += step) {
      if (this.selectAny(this.rows[row], tick)) return true;
    }
    return false;
  }

  selectAny(track, tick = this.from) {
    const [bars, set] = this.barsOf(track), bar = barAt(bars, set, tick, this.whole);
    if (bar < 0) return false;
    this.select({ track, bar }, true);
    return true;
  }

  /** Selects the next bar that matches the search, in the order of time, then of rows. */
  next() {
    const bars = this.bars, mark = this.selected && this.selected.track >= 0 ? this.selected : null;
    const now = mark ? bars.start[mark.bar] : -1, row = mark ? this.rowOf.get(mark.track) : -1;
    let best = null, first = null;
    this.rows.forEach((track, place) => {
      if (track < 0) return;
      const set = this.sets[track], high = bars.first[set + 1];
      const from = (tick) => {
        let k = firstAt(bars.start, tick, bars.first[set], high);
        while (k < high && !bars.chosen[k]) k++;
        return k < high ? { track, bar: k, start: bars.start[k] } : null;
      };
      const found = from(place > row ? now : now + 1), any = from(0);
      if (found && (!best || found.start < best.start)) best = found;
      if (any && (!first || any.start < first.start)) first = any;
    });
    const found = best || first;
    if (found) this.select({ track: found.track, bar: found.bar }, true);
    return Boolean(found);
  }

  /** What is known of a bar, a line each. */
  describe(mark) {
    const [bars] = this.barsOf(mark.track), { bar } = mark, tick = this.data.tick;
    const microbatch = this.data.microbatches ? ` [mb ${bars.microbatch[bar]}]` : "";
    const where = mark.track < 0 ? (this.path.track[bar] ? this.names[this.path.track[bar] - 1] : "") : this.names[mark.track];
    return [
      `${this.labels[bars.label[bar]]}${microbatch}`,
      `${PAGE.causes[bars.cause[bar]]}${where ? `, ${where}` : ""}`,
      `${formatSeconds(bars.length[bar] * tick)}, from ${formatSeconds(bars.start[bar] * tick)} to ${formatSeconds(bars.finish[bar] * tick)}`,
    ];
  }
}
