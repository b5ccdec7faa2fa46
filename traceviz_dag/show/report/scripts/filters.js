/** What a timeline leaves out: kinds, short slices, other dimensions. */

import { hue, labelOf } from "./colours.js";
import { changeAddress } from "./state.js";
import { byId, element } from "./words.js";

/** @typedef {import("./timeline.js").Timeline} Timeline */

export class Filters {
  /** @param {Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    /** @type {Set<string>} kinds that are left out */
    this.hidden = new Set();
    /** @type {Set<string>} kinds that were seen, or that the source names */
    this.kinds = new Set(timeline.about.kinds);
    /** ns; shorter slices are left out */
    this.shortest = 0;
    byId("shortest").addEventListener("input", () => {
      const found = Number(/** @type {HTMLInputElement} */ (byId("shortest")).value) * 1000;
      this.shortest = Number.isFinite(found) ? Math.max(Math.round(found), 0) : 0;
      this.keep();
    });
    byId("dimension").addEventListener("change", () => {
      timeline.lanes.dimension = /** @type {HTMLSelectElement} */ (byId("dimension")).value;
      this.keep();
    });
  }

  /** Take what an address leaves out. @param {Map<string, string>} known */
  read(known) {
    this.hidden = new Set(known.get("without")?.split(" ") ?? []);
    for (const kind of this.hidden) this.kinds.add(kind);
    this.shortest = Math.max(Math.round(Number(known.get("least") ?? "0")) || 0, 0);
    /** @type {HTMLInputElement} */ (byId("shortest")).value = this.shortest ? String(this.shortest / 1000) : "";
    this.timeline.lanes.dimension = known.get("dimension") ?? "";
    /** @type {HTMLInputElement} */ (byId("here")).checked = known.get("here") === "yes";
    byId("legend").replaceChildren();
    this.offerKinds();
  }

  /** Keep what is left out in the address, and draw. */
  keep() {
    changeAddress({
      without: [...this.hidden].join(" ") || null,
      least: this.shortest ? String(this.shortest) : null,
      dimension: this.timeline.lanes.dimension || null,
    });
    this.timeline.say(this.caveat);
    this.timeline.hits.again();
    this.timeline.draw();
  }

  /** The kinds that a share is made of; none where it is a kind of slices. @param {string} kind @returns {string[]} */
  within(kind) {
    return this.timeline.about.within?.[kind] ?? [];
  }

  /** Whether a share of what ranks did is left out. @param {string} kind */
  leavesOut(kind) {
    const parts = this.within(kind);
    return this.hidden.has(kind) || (parts.length > 0 && parts.every((part) => this.hidden.has(part)));
  }

  /** What shares count although it is left out. */
  get caveat() {
    if (this.timeline.about.within === undefined) return "";
    const some = Object.keys(this.timeline.about.within).some(
      (kind) => !this.leavesOut(kind) && this.within(kind).some((part) => this.hidden.has(part)),
    );
    const notes = [
      ...(some ? ["communication of all categories"] : []),
      ...(this.shortest ? ["kernels of any length"] : []),
    ];
    return notes.length ? `From afar, shares count ${notes.join(" and ")}: zoom in to see kernels alone.` : "";
  }

  /** Offer the dimensions of lanes that are known. */
  offerDimensions() {
    const select = /** @type {HTMLSelectElement} */ (byId("dimension"));
    const found = new Set([...this.timeline.lanes.known.values()].map((lane) => lane.dimension));
    const names = [...found.add(this.timeline.lanes.dimension)].filter((name) => name).sort();
    if (select.options.length !== names.length + 1)
      select.replaceChildren(
        element("option", { value: "" }, "all"),
        ...names.map((name) => element("option", { value: name }, name)),
      );
    select.value = this.timeline.lanes.dimension;
  }

  /** What is filtered, as a part of a question. */
  get asked() {
    return {
      ...(this.hidden.size && { without: [...this.hidden].sort() }),
      ...(this.shortest && { least: this.shortest }),
    };
  }

  /** Offer the kinds, each with its colour, to be left out. */
  offerKinds() {
    const legend = byId("legend");
    if (legend.childElementCount === this.kinds.size) return;
    const { words } = this.timeline.about;
    const order = Object.keys(words);
    /** @param {string} kind */
    const place = (kind) => (order.includes(kind) ? order.indexOf(kind) : order.length);
    const boxes = [...this.kinds]
      .sort((a, b) => place(a) - place(b))
      .map((kind) => {
        const box = /** @type {HTMLInputElement} */ (element("input", { type: "checkbox", value: kind }));
        box.checked = !this.hidden.has(kind);
        box.addEventListener("change", () => {
          if (box.checked) this.hidden.delete(kind);
          else this.hidden.add(kind);
          this.keep();
        });
        const swatch = element("span", {}, "■");
        swatch.style.color = hue(words, kind);
        return element("label", {}, box, swatch, labelOf(words, kind));
      });
    legend.replaceChildren(...boxes);
  }
}
