/** What a live timeline leaves out: kinds, short slices, other dimensions. */

import { hue, labelOf } from "./colours.js";
import { changeAddress } from "./state.js";
import { byId, element } from "./words.js";

/** @typedef {import("./live_timeline.js").LiveTimeline} LiveTimeline */

export class LiveFilters {
  /** @param {LiveTimeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    /** @type {Set<string>} kinds that are left out */
    this.hidden = new Set();
    /** @type {Set<string>} kinds that were seen */
    this.kinds = new Set();
    /** ns; shorter slices are left out */
    this.shortest = 0;
  }

  /** Take what an address leaves out. @param {Map<string, string>} known */
  read(known) {
    this.hidden = new Set(known.get("without")?.split(" ") ?? []);
    for (const kind of this.hidden) this.kinds.add(kind);
    this.shortest = Math.max(Math.round(Number(known.get("least") ?? "0")) || 0, 0);
    /** @type {HTMLInputElement} */ (byId("shortest")).value = this.shortest ? String(this.shortest / 1000) : "";
    this.timeline.lanes.dimension = known.get("dimension") ?? "";
    /** @type {HTMLInputElement} */ (byId("here")).checked = known.get("here") === "yes";
  }

  /** Keep what is left out in the address, and draw. */
  keep() {
    changeAddress({
      without: [...this.hidden].join(" ") || null,
      least: this.shortest ? String(this.shortest) : null,
      dimension: this.timeline.lanes.dimension || null,
    });
    this.timeline.draw();
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

  /** Offer the kinds that were seen, each with its colour, to be left out. */
  offerKinds() {
    const legend = byId("legend");
    if (legend.childElementCount === this.kinds.size) return;
    const { words } = this.timeline.about;
    const ordered = [...this.kinds].sort((a, b) => labelOf(words, a).localeCompare(labelOf(words, b)));
    const boxes = ordered.map((kind) => {
      const box = /** @type {HTMLInputElement} */ (element("input", { type: "checkbox" }));
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
