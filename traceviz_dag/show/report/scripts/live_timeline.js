/** The live timeline: draws tiles that it asks for as it moves, with the mouse and the keys of the report. */

import { isDrawn, Lanes } from "./live_lanes.js";
import { LiveColours, paintBoxes, paintCounter, paintPlaces, paintStrip } from "./live_painter.js";
import {
  bookmarkChips,
  bookmarkParts,
  detailParts,
  exactly,
  findingParts,
  hitParts,
  measureParts,
  SIGNS,
} from "./live_panel.js";
import { whole } from "./live_source.js";
import { drawRuler } from "./ruler.js";
import { ABOVE, fitted, LEAST_NAMED, NEAR, OVERVIEW, RULER, Stage, ZOOM } from "./stage.js";
import { address, changeAddress } from "./state.js";
import { byId, copied, duration, element, facts } from "./words.js";

/** @typedef {import("./live_lanes.js").LiveRow} LiveRow */
/** @typedef {import("./live_panel.js").Place} Place */
/** @typedef {import("./live_source.js").Source} Source */
/** @typedef {import("./live_source.js").Shown} Shown */
/** @typedef {import("./live_source.js").Strip} Strip */
/** @typedef {import("./painter.js").View} View */

/** @typedef {Shown & {from: number, to: number, dot: number, filter: string}} Tile */

const LABELS = 210;
const MOST_PIXELS = 4096;
const LANES_A_QUESTION = 48;
const MOST_TILES = 400;
const FEW = 2;
/** Signs at one place of the ruler that are told at once. */
const FEW_SIGNS = 6;

export class LiveTimeline extends Stage {
  /**
   * @param {Source} source
   * @param {any} about as the server tells it
   */
  constructor(source, about) {
    super(Math.max(Number(about.length), 1), LABELS);
    this.source = source;
    this.about = about;
    this.end = this.looking.end;
    this.lanes = new Lanes(source);
    this.lanes.take("", about.lanes);
    this.colours = new LiveColours(about.colours, about.other, this.dark.matches);
    /** @type {Map<string, Tile>} */
    this.tiles = new Map();
    /** @type {Strip | null} */
    this.strip = null;
    /** @type {Place | null} */
    this.chosen = null;
    /** @type {any} what is known of the chosen slice */
    this.known = null;
    /** @type {any} the last measures */
    this.measured = null;
    /** @type {string} key of the lane that keys act on */
    this.lane = about.lanes[0]?.key ?? "";
    /** @type {any} the page of hits that is open */
    this.hits = null;
    this.hit = -1;
    /** @type {Set<string>} kinds that are left out */
    this.hidden = new Set();
    /** @type {Set<string>} */
    this.kinds = new Set();
    this.shortest = 0;
    /** Where the last search's hits lie: per lane starts and ends, of what question. */
    this.matched = { asked: "", found: /** @type {Record<string, [number[], number[]]>} */ ({}) };
    this.asking = false;
    /** the question that was refused: it is not asked again */
    this.refused = "";
    /** what is asked after a move, in the order of the keys */
    this.queue = Promise.resolve();
    /** @type {Map<string, any[]>} lane → places of findings in it */
    this.placed = new Map();
    for (const mark of about.marks) {
      if (mark.kind !== "finding") continue;
      for (const place of mark.places) this.placed.set(place.lane, [...(this.placed.get(place.lane) ?? []), place]);
    }
    source.say = (words) => this.say(words);
    this.listen();
  }

  listen() {
    const { canvas } = this;
    new ResizeObserver(() => this.draw()).observe(canvas);
    this.dark.addEventListener("change", () => {
      this.colours = new LiveColours(this.about.colours, this.about.other, this.dark.matches);
      this.draw();
    });
    canvas.addEventListener("wheel", (event) => this.wheel(event), { passive: false });
    canvas.addEventListener("pointerdown", (event) => this.press(event));
    canvas.addEventListener("pointermove", (event) => this.hover(event));
    canvas.addEventListener("pointerleave", () => this.tip(null));
    const search = /** @type {HTMLInputElement} */ (byId("search"));
    search.addEventListener("keydown", (event) => {
      if (event.key === "Enter") this.soon(() => this.search(search.value, 0));
    });
    byId("shortest").addEventListener("input", () => {
      const found = Number(/** @type {HTMLInputElement} */ (byId("shortest")).value) * 1000;
      this.shortest = Number.isFinite(found) ? Math.max(Math.round(found), 0) : 0;
      this.keepFilters();
    });
    byId("dimension").addEventListener("change", () => {
      this.lanes.dimension = /** @type {HTMLSelectElement} */ (byId("dimension")).value;
      this.lanes.layOut();
      this.keepFilters();
    });
    for (const link of document.querySelectorAll("a.perfetto")) {
      link.addEventListener("click", (event) => {
        event.preventDefault();
        this.soon(() => this.perfetto(/** @type {HTMLAnchorElement} */ (link).getAttribute("href") ?? ""));
      });
    }
  }

  /** Do what needs answers, after all that was asked for before; faults are told. @param {() => Promise<unknown>} act */
  soon(act) {
    this.queue = this.queue.then(act).then(
      () => this.draw(),
      (error) => this.say(String(error.message ?? error)),
    );
    return this.queue;
  }

  /** @param {string} words */
  say(words) {
    byId("said").textContent = words;
  }

  /** Take what is looked at from the page's address. */
  async fromAddress() {
    const known = address();
    const from = Number(known.get("t0") ?? "0");
    const to = Number(known.get("t1") ?? String(this.end));
    if (Number.isFinite(from) && Number.isFinite(to) && to > from) this.looking.show(from, to, false);
    this.readFilters(known);
    const open = known.get("open");
    const first = this.about.lanes.filter((/** @type {any} */ lane) => lane.holds).slice(0, FEW);
    const few = this.about.lanes.length <= FEW ? first.map((/** @type {any} */ lane) => lane.key) : [];
    for (const key of open === undefined ? few : open.split(" ")) await this.lanes.unfold(key);
    this.lanes.pinned = known.get("pinned")?.split(" ") ?? [];
    for (const key of this.lanes.pinned) await this.lanes.reach(key);
    this.lanes.layOut();
    const lane = known.get("lane");
    if (lane && this.lanes.known.has(lane)) this.lane = lane;
    const pattern = known.get("search");
    if (pattern && pattern !== this.hits?.pattern) {
      /** @type {HTMLInputElement} */ (byId("search")).value = pattern;
      await this.search(pattern, 0);
    }
    const chosen = known.get("chosen");
    if (chosen) await this.choose({ slice: chosen });
  }

  keepRows() {
    changeAddress({ open: [...this.lanes.open].join(" "), pinned: this.lanes.pinned.join(" ") || null });
  }

  /** What an address leaves out. @param {Map<string, string>} known */
  readFilters(known) {
    this.hidden = new Set(known.get("without")?.split(" ") ?? []);
    for (const kind of this.hidden) this.kinds.add(kind);
    this.shortest = Math.max(Math.round(Number(known.get("least") ?? "0")) || 0, 0);
    /** @type {HTMLInputElement} */ (byId("shortest")).value = this.shortest ? String(this.shortest / 1000) : "";
    this.lanes.dimension = known.get("dimension") ?? "";
    /** @type {HTMLInputElement} */ (byId("here")).checked = known.get("here") === "yes";
  }

  /** Keep what is left out in the address, and draw. */
  keepFilters() {
    changeAddress({
      without: [...this.hidden].join(" ") || null,
      least: this.shortest ? String(this.shortest) : null,
      dimension: this.lanes.dimension || null,
    });
    this.draw();
  }

  /** The dimensions of lanes that are known, to choose one. */
  dimensions() {
    const select = /** @type {HTMLSelectElement} */ (byId("dimension"));
    const found = new Set([...this.lanes.known.values()].map((lane) => lane.dimension));
    const names = [...found.add(this.lanes.dimension)].filter((name) => name).sort();
    if (select.options.length !== names.length + 1)
      select.replaceChildren(
        element("option", { value: "" }, "all"),
        ...names.map((name) => element("option", { value: name }, name)),
      );
    select.value = this.lanes.dimension;
  }

  repaint() {
    this.paint();
    void this.fetchTiles();
  }

  get room() {
    return Math.max(this.canvas.clientHeight - ABOVE, 1);
  }

  /** @returns {LiveRow[]} */
  get visible() {
    return this.lanes.rows.filter((row) => row.top + row.height > this.scroll && row.top < this.scroll + this.room);
  }

  /** What is filtered, as a part of a question. */
  get filter() {
    return {
      ...(this.hidden.size && { without: [...this.hidden].sort() }),
      ...(this.shortest && { least: this.shortest }),
    };
  }

  /** Ask for what is in sight and not known, one question at a time. */
  async fetchTiles() {
    if (this.asking || !this.canvas.clientWidth) return;
    const { from, to } = this.looking;
    const length = to - from;
    const width = Math.min(2 * this.view.width, MOST_PIXELS);
    const dot = (2 * length) / width;
    const filter = JSON.stringify(this.filter);
    const wanted = this.visible
      .filter((row) => isDrawn(row.lane))
      .map((row) => row.lane.key)
      .filter((key) => {
        const tile = this.tiles.get(key);
        const fits = tile && tile.from <= Math.max(from, 0) && tile.to >= Math.min(to, this.end);
        return !fits || tile.dot > 1.5 * dot || tile.dot < dot / 8 || tile.filter !== filter;
      })
      .slice(0, LANES_A_QUESTION);
    const strip = !wanted.length && this.strip === null;
    if (!wanted.length && !strip) return void this.fetchMatches(filter);
    const question = {
      lane: wanted,
      from: whole(strip ? 0 : from - length / 2),
      to: whole(strip ? this.end : to + length / 2),
      pixels: strip ? Math.min(this.view.width, MOST_PIXELS) : width,
      ...(strip ? { overview: 1 } : this.filter),
    };
    const asked = JSON.stringify(question);
    if (asked === this.refused) return;
    this.asking = true;
    try {
      const found = await this.source.tiles(question);
      if (found.strip) this.strip = found.strip;
      for (const shown of found.shown) {
        const place = { from: from - length / 2, to: to + length / 2, dot, filter };
        this.tiles.delete(shown.lane);
        this.tiles.set(shown.lane, { ...shown, ...place });
        for (const kind of new Set(shown.boxes?.kind)) this.kinds.add(shown.boxes?.kinds[kind] ?? "");
      }
      for (const key of [...this.tiles.keys()].slice(0, Math.max(this.tiles.size - MOST_TILES, 0)))
        this.tiles.delete(key);
      this.legend();
      if (byId("said").textContent?.startsWith("This takes longer")) this.say("");
    } catch (error) {
      this.refused = asked;
      this.say(String(/** @type {Error} */ (error).message));
    }
    this.asking = false;
    document.body.dataset.drawn = String(Number(document.body.dataset.drawn ?? "0") + 1);
    this.draw();
  }

  /** Ask where the hits of the last search lie in the lanes in sight. @param {string} filter */
  async fetchMatches(filter) {
    const { from, to } = this.looking;
    const lane = this.visible
      .filter((row) => row.lane.rows > 0 && row.lane.kind !== "counter")
      .map((row) => row.lane.key)
      .slice(0, LANES_A_QUESTION);
    const { pattern, lanes } = this.hits ?? {};
    const asked = pattern ? JSON.stringify([pattern, lanes, lane, from, to, this.view.width, filter]) : "";
    if (asked === this.matched.asked) return;
    const wanted = lanes ? lane.filter((key) => key === lanes) : lane;
    const window = { from: whole(from), to: whole(to), pixels: Math.min(this.view.width, MOST_PIXELS) };
    this.asking = true;
    try {
      const found = wanted.length && asked ? { pattern, lane: wanted, ...window, ...this.filter } : null;
      this.matched = { asked, found: found ? await this.source.ask("matched", found) : {} };
    } catch (error) {
      this.matched = { asked, found: {} };
      this.say(String(/** @type {Error} */ (error).message));
    }
    this.asking = false;
    this.draw();
  }

  /** The kinds that were seen, each with its colour, to be left out. */
  legend() {
    const legend = byId("legend");
    if (legend.childElementCount === this.kinds.size) return;
    const boxes = [...this.kinds].sort().map((kind) => {
      const box = /** @type {HTMLInputElement} */ (element("input", { type: "checkbox" }));
      box.checked = !this.hidden.has(kind);
      box.addEventListener("change", () => {
        if (box.checked) this.hidden.delete(kind);
        else this.hidden.add(kind);
        this.keepFilters();
      });
      const swatch = element("span", {}, "■");
      swatch.style.color = this.about.colours[kind] ?? this.about.other;
      return element("label", {}, box, swatch, kind.replaceAll("_", " ") || "other");
    });
    legend.replaceChildren(...boxes);
  }

  paint() {
    if (!this.fit()) return;
    this.dimensions();
    const { context, scale, colours } = this;
    const { raster, view } = this;
    this.scrollWithin(this.lanes.height - this.room);
    raster.clear(colours.paper);
    const visible = this.visible;
    for (const row of visible) {
      const top = Math.round((row.top - this.scroll + ABOVE) * scale);
      const bottom = Math.round((row.top + row.height - this.scroll + ABOVE) * scale);
      raster.fill(view.left, top, raster.width, bottom, isDrawn(row.lane) ? colours.idle : colours.header);
      const tile = this.tiles.get(row.lane.key);
      if (tile?.boxes) paintBoxes(raster, view, tile.boxes, colours, top, bottom);
      if (tile?.changes) paintCounter(raster, view, tile.changes, colours.busy, top, bottom);
      const matches = this.matched.found[row.lane.key];
      if (matches) paintPlaces(raster, view, matches[0], matches[1], colours.ink, bottom - 2 * scale);
      for (const mark of this.placed.get(row.lane.key) ?? [])
        paintPlaces(raster, view, [mark.from], [mark.to], colours.ink, top);
    }
    raster.fill(0, 0, raster.width, ABOVE * scale, colours.paper);
    const all = { ...view, from: 0, to: this.end };
    if (this.strip)
      paintStrip(raster, all, this.strip, colours, Math.round(2 * scale), Math.round((OVERVIEW - 2) * scale));
    context.putImageData(raster.image, 0, 0);
    this.write(visible);
    changeAddress({ t0: String(Math.round(this.looking.from)), t1: String(Math.round(this.looking.to)) });
  }

  /** Where a time lies, in pixels of the page. @param {number} time */
  x(time) {
    const { view, scale } = this;
    return (view.left + ((time - view.from) / (view.to - view.from)) * view.width) / scale;
  }

  /** Texts, ruler, selection and frames, above what was filled. @param {LiveRow[]} visible */
  write(visible) {
    const { context, scale, view, looking } = this;
    const style = getComputedStyle(document.documentElement);
    const [ink, quiet, attention] = ["--ink", "--quiet", "--attention"].map((name) => style.getPropertyValue(name));
    context.setTransform(scale, 0, 0, scale, 0, 0);
    context.textBaseline = "middle";
    const left = view.left / scale;
    const width = view.width / scale;
    const first = this.strip && this.strip.lanes < this.strip.of ? "the first " : "";
    const mean = this.strip ? `mean of ${first}${this.strip.lanes}: busy, exposed` : "";
    this.writeOverview(left, width, ink, mean);
    drawRuler(context, looking, { left, width, top: OVERVIEW, height: RULER }, quiet);
    for (const mark of this.about.marks) {
      const at = this.x(mark.from);
      if (mark.kind === "iteration" && at >= left && at <= left + width)
        context.fillRect(Math.round(at), OVERVIEW, 2, RULER);
    }
    this.signs(left, width, attention, ink);
    context.save();
    context.beginPath();
    context.rect(0, ABOVE, left + width, this.canvas.clientHeight);
    context.clip();
    const blamed = new Set(
      this.about.marks
        .filter((/** @type {any} */ mark) => mark.kind === "finding")
        .map((/** @type {any} */ mark) => mark.lane),
    );
    for (const row of visible) {
      const top = row.top - this.scroll + ABOVE;
      const { lane } = row;
      if (lane.key === this.lane) {
        context.globalAlpha = 0.15;
        context.fillStyle = attention;
        context.fillRect(0, top, left, row.height);
        context.globalAlpha = 1;
      }
      context.fillStyle = lane.parent === null ? ink : quiet;
      context.font = `${Math.min(12, row.height - 3)}px system-ui, sans-serif`;
      const sign = lane.holds ? (this.lanes.open.has(lane.key) ? "▾ " : "▸ ") : "";
      const indent = 6 + 12 * row.depth;
      context.fillText((row.pinned ? "• " : "") + sign + lane.label, indent, top + row.height / 2, left - indent - 14);
      if (blamed.has(lane.key)) {
        context.fillStyle = attention;
        context.fillText("▲", left - 12, top + row.height / 2);
      }
      this.names(row, top, left, width);
    }
    this.frames(visible, ink, left, width);
    this.writeSelection(left, width, attention);
    context.restore();
    context.setTransform(1, 0, 0, 1, 0, 0);
  }

  /**
   * What lies in time beside the lanes: places of findings and notes, then bookmarks.
   * @returns {{from: number, to: number, sign: string, words: string}[]}
   */
  get inTime() {
    const { marks, bookmarks } = this.about;
    const found = marks.flatMap((/** @type {any} */ mark) =>
      (mark.places.length || mark.lane === null ? mark.places : [mark]).map((/** @type {any} */ place) => ({
        ...place,
        sign: SIGNS[mark.kind],
        words: `${mark.label}: ${mark.statement}`,
      })),
    );
    const kept = (bookmarks ?? []).map((/** @type {any} */ one) => ({ ...one, sign: SIGNS.bookmark, words: one.note }));
    return [...found.filter((/** @type {any} */ one) => one.sign), ...kept];
  }

  /** Signs in the ruler where findings, notes and bookmarks begin. @param {number} left @param {number} width @param {string} attention @param {string} ink */
  signs(left, width, attention, ink) {
    const { context } = this;
    context.font = "10px system-ui, sans-serif";
    context.textAlign = "center";
    const drawn = new Set();
    for (const { from, sign } of this.inTime) {
      const at = Math.round(this.x(from));
      if (at < left || at > left + width || drawn.has(`${at}${sign}`)) continue;
      drawn.add(`${at}${sign}`);
      context.fillStyle = sign === SIGNS.finding ? attention : ink;
      context.fillText(sign, at, ABOVE - 5);
    }
    context.textAlign = "start";
  }

  /** Names of what is wide enough. @param {LiveRow} row @param {number} top @param {number} left @param {number} width */
  names(row, top, left, width) {
    const boxes = this.tiles.get(row.lane.key)?.boxes;
    if (!boxes || row.height < 14) return;
    const { context } = this;
    context.font = "10px system-ui, sans-serif";
    context.fillStyle = "#22262B";
    let room = width / LEAST_NAMED;
    for (let i = 0; i < boxes.start.length && room > 0; i++) {
      if (boxes.count[i] !== 1 || boxes.name[i] < 0) continue;
      const low = Math.max(this.x(boxes.start[i]), left);
      const wide = Math.min(this.x(boxes.end[i]), left + width) - low;
      if (wide < LEAST_NAMED) continue;
      room--;
      const shown = fitted(boxes.names[boxes.name[i]], wide);
      context.fillText(shown, low + 2, top + row.height / 2 + 0.5, wide - 3);
    }
  }

  /** A frame around what is chosen, and around its peers. @param {LiveRow[]} visible @param {string} ink @param {number} left @param {number} width */
  frames(visible, ink, left, width) {
    if (this.chosen === null) return;
    const { context } = this;
    context.strokeStyle = ink;
    for (const place of [this.chosen, ...(this.known?.peers ?? [])]) {
      const row = visible.find((each) => each.lane.key === place.lane);
      if (row === undefined) continue;
      const low = Math.max(this.x(place.from), left);
      const high = Math.min(this.x(place.to), left + width);
      if (high < left || low > left + width) continue;
      context.lineWidth = place === this.chosen ? 2 : 1;
      context.strokeRect(low - 1, row.top - this.scroll + ABOVE, Math.max(high - low + 2, 3), row.height);
    }
    context.lineWidth = 1;
  }

  /** @param {MouseEvent} event */
  under(event) {
    const { at, x, y } = this.timeUnder(event);
    return { at, x, y, row: y >= ABOVE ? this.lanes.rowAt(y - ABOVE + this.scroll) : undefined };
  }

  /**
   * The box of a lane at a time, or the nearest one within some pixels.
   * @param {LiveRow | undefined} row
   * @param {number} at
   * @returns {number} -1 for none
   */
  pick(row, at) {
    const boxes = row && this.tiles.get(row.lane.key)?.boxes;
    if (!boxes) return -1;
    const slack = NEAR * this.perPixel;
    let best = -1;
    let distance = slack + 1e-9;
    for (let i = 0; i < boxes.start.length; i++) {
      const away = Math.max(boxes.start[i] - at, at - boxes.end[i], 0);
      // As they are drawn above each other: slices above cells, of slices the last one begun.
      const below = away === distance && boxes.count[i] > 1 && best >= 0 && boxes.count[best] === 1;
      if (away <= distance && !below) {
        best = i;
        distance = away;
      }
    }
    return best;
  }

  /** @param {PointerEvent} event */
  hover(event) {
    if (event.buttons) return;
    const { at, row, x, y } = this.under(event);
    if (y >= OVERVIEW && y < ABOVE) {
      const near = this.inTime.filter((one) => Math.abs(one.from - at) <= 2 * NEAR * this.perPixel);
      const words = [...new Set(near.map((one) => `${one.sign} ${one.words}`))].slice(0, FEW_SIGNS);
      return this.tip(words.length ? words.map((each) => element("p", {}, each)) : null, event);
    }
    this.canvas.classList.toggle("points", x < this.labels && row !== undefined);
    const boxes = row && this.tiles.get(row.lane.key)?.boxes;
    const place = x < this.labels ? -1 : this.pick(row, at);
    if (row === undefined || !boxes || place < 0) return this.tip(null);
    const { start, end, busy, count, name, kind, kinds, names } = boxes;
    const head = name[place] >= 0 ? names[name[place]] : (kinds[kind[place]] ?? "").replaceAll("_", " ");
    const several = count[place] > 1;
    const known = /** @type {[string, string][]} */ ([
      ["shown as", (kinds[kind[place]] ?? "").replaceAll("_", " ")],
      [several ? "cell" : "duration", duration(end[place] - start[place])],
      ...(several
        ? [
            ["slices", String(count[place])],
            ["busy", duration(busy[place])],
          ]
        : []),
      ["at", duration(start[place])],
      ["lane", row.lane.label],
    ]);
    this.tip([element("b", {}, several ? `longest: ${head}` : head), facts(known)], event);
    return undefined;
  }

  /** @param {(Node | string)[] | null} parts @param {PointerEvent} [event] */
  tip(parts, event) {
    const tip = byId("tip");
    tip.hidden = parts === null;
    if (parts === null || event === undefined) return;
    tip.replaceChildren(...parts);
    this.placeTip(tip, event);
  }

  /** @param {WheelEvent} event */
  wheel(event) {
    event.preventDefault();
    const remembered = this.begins(event);
    if (event.shiftKey) this.scroll += event.deltaY || event.deltaX;
    else if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.looking.move(event.deltaX / 1000, remembered);
    else this.looking.zoom(Math.exp(event.deltaY * 0.0015), this.under(event).at, remembered);
    this.draw();
  }

  /** @param {PointerEvent} event */
  press(event) {
    this.canvas.focus();
    const begun = this.under(event);
    if (begun.row) this.lane = begun.row.lane.key;
    if (begun.x < this.labels) {
      if (begun.row) void this.soon(() => this.toggle(this.lane));
      return;
    }
    this.tip(null);
    this.drag(event, event.shiftKey && begun.y >= OVERVIEW, {
      clicked: () => void this.soon(() => this.chooseAt(begun.row, begun.at)),
      selected: () => void this.soon(() => this.measure(false)),
    });
  }

  /** @param {string} key */
  async toggle(key) {
    if (this.lanes.open.has(key)) this.lanes.fold(key);
    else await this.lanes.unfold(key);
    this.keepRows();
  }

  /** @param {LiveRow | undefined} row @param {number} at */
  async chooseAt(row, at) {
    const boxes = row && this.tiles.get(row.lane.key)?.boxes;
    const place = this.pick(row, at);
    if (row && boxes && place >= 0) await this.choose({ slice: `${row.lane.key}#${boxes.row[place]}` });
    else this.forget();
  }

  /** Choose a slice and show all that is known of it. @param {{slice: string}} place */
  async choose(place) {
    const found = await this.source.ask("detail", { slice: place.slice });
    this.known = found;
    this.chosen = found;
    this.lane = found.lane;
    changeAddress({ chosen: found.slice });
    this.panel(detailParts(found, (to) => this.soon(() => this.goTo(to))));
  }

  /** @param {(Node | string)[]} parts */
  panel(parts) {
    byId("details").replaceChildren(...parts);
    byId("details").scrollTop = 0;
  }

  /** Choose a slice and bring it into sight. @param {Place} place */
  async goTo(place) {
    for (const key of place.around) await this.lanes.unfold(key);
    this.keepRows();
    this.reveal(place.lane);
    this.show(place.from, place.to);
    await this.choose(place);
  }

  /** Bring a lane into sight. @param {string} key */
  reveal(key) {
    const row = this.lanes.rowOf(key);
    if (row === undefined) return;
    if (row.top < this.scroll) this.scrollTo(row.top);
    if (row.top + row.height > this.scroll + this.room) this.scrollTo(row.top + row.height - this.room);
  }

  /** Bring a time into sight; what is too short to be seen is shown larger. @param {number} from @param {number} to */
  show(from, to) {
    const { looking } = this;
    const length = looking.to - looking.from;
    const least = (length * NEAR) / (this.canvas.clientWidth - this.labels);
    if (to - from > length || to - from < least) {
      const around = Math.max((to - from) * 2, Math.min(length, (to - from) * 100), 20);
      looking.show((from + to - around) / 2, (from + to + around) / 2);
    } else if (from < looking.from || to > looking.to) {
      looking.show((from + to - length) / 2, (from + to + length) / 2);
    }
  }

  forget() {
    this.chosen = null;
    this.known = null;
    changeAddress({ chosen: null });
    this.panel([element("p", { class: "quiet" }, "Nothing is chosen.")]);
  }

  /** The selection, or what is shown, in whole ns. */
  get window() {
    const { from, to } = this.selection ?? this.looking;
    const low = Math.max(Math.round(from), 0);
    return { from: low, to: Math.max(Math.min(Math.round(to), this.end), low + 1) };
  }

  /** Measure exactly the window, of the rank or GPU of the lane, or of all. @param {boolean} all */
  async measure(all) {
    const { from, to } = this.window;
    const root = this.lanes.known.get(this.lanes.rootOf(this.lane));
    const one = !all && root && (root.kind === "rank" || root.kind === "gpu");
    this.say("measuring …");
    const lane = one ? [root.key] : [];
    this.measured = await this.source.ask("measure", { from: whole(from), to: whole(to), lane });
    this.say("");
    this.panel(measureParts(this.measured, (name) => this.soon(() => this.find(name))));
    document.body.dataset.measured = `${exactly(from)} ${exactly(to)}`;
  }

  /** @param {string} pattern @param {number} page */
  async search(pattern, page) {
    if (!pattern) {
      this.hits = null;
      byId("matches").textContent = "";
      changeAddress({ search: null, here: null });
      return;
    }
    const here = /** @type {HTMLInputElement} */ (byId("here")).checked;
    const { dimension } = this.lanes;
    const where = { ...(here && { lane: [this.lane] }), ...(!here && dimension && { dimension }) };
    const found = await this.source.ask("search", { pattern, page, ...where, ...this.filter });
    this.hits = { ...found, pattern, lanes: here ? this.lane : "" };
    changeAddress({ search: pattern, here: here ? "yes" : null, ...(here && { lane: this.lane }) });
    this.hit = -1;
    byId("matches").textContent = `${exactly(found.total)} found`;
    this.listHits();
  }

  /** Search for a name of a table. @param {string} name */
  async find(name) {
    // What is shown as an escape or cut off is any sign; ASCII signs that mean something to an expression are themselves.
    const plain = name.replace(/\\u[0-9a-f]{4}|…/g, " ");
    const pattern = plain.replace(/[!-/:-@[-^`{-~]/g, "\\$&").replace(/\s+/g, ".+");
    /** @type {HTMLInputElement} */ (byId("search")).value = pattern;
    await this.search(pattern, 0);
    if (this.hits.total) await this.toHit(1);
  }

  listHits() {
    if (this.hits === null) return this.say("Search first: /");
    const turn = (/** @type {number} */ page) => this.soon(() => this.search(this.hits.pattern, page));
    this.panel(hitParts(this.hits, (to) => this.soon(() => this.goTo(to)), turn));
    return undefined;
  }

  /** @param {number} step */
  async toHit(step) {
    if (!this.hits?.total) return this.say("Nothing was found: / searches.");
    let { page } = this.hits;
    let next = this.hit + step;
    if (this.hit < 0 && step < 0) next = this.hits.hits.length - 1;
    if (next < 0 || next >= this.hits.hits.length) {
      page = (page + step + this.hits.pages) % this.hits.pages;
      if (page !== this.hits.page) await this.search(this.hits.pattern, page);
      next = step > 0 ? 0 : this.hits.hits.length - 1;
    }
    this.hit = next;
    byId("matches").textContent = `${exactly(this.hits.before + next + 1)} of ${exactly(this.hits.total)}`;
    return this.goTo(this.hits.hits[next]);
  }

  /** @param {"next" | "previous"} way */
  async neighbour(way) {
    const middle = Math.round((this.looking.from + this.looking.to) / 2);
    const chosen = this.chosen?.lane === this.lane ? this.chosen : null;
    const found = await this.source.ask("neighbour", {
      ...(chosen && { slice: chosen.slice }),
      ...(!chosen && { lane: this.lane, time: whole(middle) }),
      way,
      ...this.filter,
    });
    if (found) await this.goTo(found);
    else this.say(`There is no further slice in this lane${Object.keys(this.filter).length ? " that is shown" : ""}.`);
  }

  /** @param {"next" | "previous"} way */
  async gap(way) {
    const middle = (this.looking.from + this.looking.to) / 2;
    const here = this.selection ?? (this.chosen?.lane === this.lane ? this.chosen : { from: middle, to: middle });
    const time = whole(way === "next" ? here.from : here.from);
    const found = await this.source.ask("gap", { lane: this.lane, time, way });
    if (!found) return this.say("There is no further gap in this lane.");
    this.select(found.from, found.to);
    this.say(`gap of ${duration(found.to - found.from)}`);
    return this.show(found.from, found.to);
  }

  /** @param {"next" | "previous"} way */
  async iteration(way) {
    const found = await this.source.ask("iteration", { time: whole(this.looking.from), way });
    if (!found) return this.say("There is no further iteration.");
    this.looking.show(found.from, found.to);
    return this.say(found.label);
  }

  async launch() {
    if (this.chosen === null) return this.say("Choose a slice first.");
    const found = await this.source.ask("follow", { slice: this.chosen.slice });
    return found ? this.goTo(found) : this.say("No launch of this is known.");
  }

  /** The same communication on the next rank. */
  async peer() {
    if (this.chosen === null) return this.say("Choose a communication first.");
    const found = await this.source.ask("members", { slice: this.chosen.slice });
    if (found.length < 2) return this.say("This is not matched with other ranks.");
    const root = this.lanes.rootOf(this.chosen.lane);
    const place = found.findIndex((/** @type {Place} */ one) => this.lanes.rootOf(one.lane) === root);
    const own = place >= 0 ? place : found.findIndex((/** @type {Place} */ one) => one.around.includes(root));
    return this.goTo(found[(own + 1) % found.length]);
  }

  /** The critical path of the rank. */
  async path() {
    const root = this.lanes.rootOf(this.lane);
    await this.lanes.unfold(root);
    const path = (this.lanes.below.get(root) ?? []).find((key) => this.lanes.known.get(key)?.kind === "path");
    if (path === undefined) return this.say("No critical path runs through this.");
    this.lane = path;
    this.keepRows();
    return this.reveal(path);
  }

  findings() {
    this.panel(
      findingParts(this.about.marks, (mark) => {
        const place = mark.places[0] ?? mark;
        if (place.lane) {
          this.lane = place.lane;
          this.reveal(place.lane);
        }
        if (mark.places.length) {
          this.select(place.from, place.to);
          this.show(place.from, place.to);
        } else this.looking.show(place.from, place.to);
        this.draw();
      }),
    );
  }

  bookmark() {
    const { from, to } = this.looking;
    if (this.about.bookmarks === null)
      return this.say("No bookmarks are kept where two sources lie beside each other.");
    const words = `${duration(Math.max(from, 0))} + ${duration(to - from)}`;
    const one = { from: Math.round(from), to: Math.round(to), lane: this.lane };
    const { field, parts } = bookmarkParts(words, (note) => {
      this.forget();
      this.canvas.focus();
      void this.soon(async () => this.bookmarks(await this.source.change("bookmarks", { ...one, note })));
    });
    this.panel(parts);
    return field.focus();
  }

  /** @param {any[] | null} kept */
  bookmarks(kept) {
    this.about.bookmarks = kept;
    const go = (/** @type {any} */ one) => {
      if (one.lane) {
        this.lane = one.lane;
        this.reveal(one.lane);
      }
      this.looking.show(one.from, one.to);
      this.draw();
    };
    const forget = (/** @type {any} */ one) =>
      this.soon(async () => this.bookmarks(await this.source.change("bookmarks", { ...one, forget: true })));
    byId("bookmarks").replaceChildren(...bookmarkChips(kept ?? [], go, forget));
  }

  /** The Perfetto UI, at the window that is shown. @param {string} link */
  async perfetto(link) {
    const { from, to } = this.window;
    const found = await this.source.ask("perfetto", { from: whole(from), to: whole(to) });
    window.open(found ? `${link}&visStart=${found.from}&visEnd=${found.to}` : link, "_blank", "noopener");
  }

  /** @param {"sql" | "command"} what */
  async copy(what) {
    const text = what === "sql" ? this.known?.sql : (this.known?.command ?? this.measured?.commands[0]);
    if (!text)
      return this.say(
        what === "sql" ? "Choose a slice of a table first, to copy its SQL." : "Choose or measure first.",
      );
    return this.say((await copied(text)) ? "copied" : "");
  }

  /** @param {number} step */
  moveLane(step) {
    const { rows } = this.lanes;
    const place = rows.findIndex((row) => row.lane.key === this.lane);
    const row = rows[Math.min(Math.max(place + step, 0), rows.length - 1)];
    if (!row) return;
    this.lane = row.lane.key;
    this.reveal(this.lane);
  }

  /** Set an edge of the selection at the slice, or at the edge of what is shown. @param {"from" | "to"} edge */
  edge(edge) {
    const selection = { ...(this.selection ?? this.looking), [edge]: (this.chosen ?? this.looking)[edge] };
    this.select(selection.from, selection.to);
  }

  zoomToSelection() {
    if (this.selection) this.looking.show(this.selection.from, this.selection.to);
    else if (this.chosen) {
      const margin = (this.chosen.to - this.chosen.from) * 0.1;
      this.looking.show(this.chosen.from - margin, this.chosen.to + margin);
    }
  }

  /** Do what a key asks for; false where it is not the timeline's. @param {string} action */
  act(action) {
    const { looking } = this;
    const middle = (looking.from + looking.to) / 2;
    /** @type {Record<string, () => unknown>} */
    const now = {
      left: () => looking.move(-0.2),
      right: () => looking.move(0.2),
      in: () => looking.zoom(ZOOM, middle),
      out: () => looking.zoom(1 / ZOOM, middle),
      all: () => looking.show(0, looking.end),
      selection: () => this.zoomToSelection(),
      undo: () => looking.undo(),
      redo: () => looking.redo(),
      search: () => byId("search").focus(),
      findings: () => this.findings(),
      timeline: () => this.canvas.focus(),
      bookmark: () => this.bookmark(),
      hits: () => this.listHits(),
      laneDown: () => this.moveLane(1),
      laneUp: () => this.moveLane(-1),
      pin: () => {
        this.lanes.pin(this.lane);
        this.keepRows();
      },
      lower: () => this.lanes.shift(this.lane, 1),
      higher: () => this.lanes.shift(this.lane, -1),
      selectFrom: () => this.edge("from"),
      selectTo: () => this.edge("to"),
      back: () => {
        this.selection = null;
        this.forget();
      },
    };
    /** @type {Record<string, () => Promise<unknown>>} */
    const asked = {
      next: () => this.neighbour("next"),
      previous: () => this.neighbour("previous"),
      gap: () => this.gap("next"),
      gapBefore: () => this.gap("previous"),
      step: () => this.iteration("next"),
      stepBefore: () => this.iteration("previous"),
      launch: () => this.launch(),
      peer: () => this.peer(),
      path: () => this.path(),
      measure: () => this.measure(false),
      measureAll: () => this.measure(true),
      nextMatch: () => this.toHit(1),
      previousMatch: () => this.toHit(-1),
      toggle: () => this.toggle(this.lane),
      copy: () => this.copy("sql"),
      copyCommand: () => this.copy("command"),
    };
    this.say("");
    if (now[action]) now[action]();
    else if (asked[action]) void this.soon(asked[action]);
    else return false;
    this.draw();
    return true;
  }
}
