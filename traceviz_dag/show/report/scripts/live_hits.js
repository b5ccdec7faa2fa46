/** What was searched for on a live timeline. */

import { exactly, hitParts } from "./live_panel.js";
import { changeAddress } from "./state.js";
import { byId } from "./words.js";

/** @typedef {import("./live_timeline.js").LiveTimeline} LiveTimeline */

export class Hits {
  /** @param {LiveTimeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    /** @type {any} the page of hits that is open */
    this.page = null;
    /** of the hit that is shown, among those of the page */
    this.place = -1;
  }

  /** Open a page of what a pattern finds. @param {string} pattern @param {number} page */
  async search(pattern, page) {
    if (!pattern) {
      this.page = null;
      byId("matches").textContent = "";
      changeAddress({ search: null, here: null });
      return;
    }
    const here = /** @type {HTMLInputElement} */ (byId("here")).checked;
    const { dimension } = this.timeline.lanes;
    const where = { ...(here && { lane: [this.timeline.lane] }), ...(!here && dimension && { dimension }) };
    const found = await this.timeline.source.ask("search", { pattern, page, ...where, ...this.timeline.filters.asked });
    this.page = { ...found, pattern, lanes: here ? this.timeline.lane : "" };
    changeAddress({ search: pattern, here: here ? "yes" : null, ...(here && { lane: this.timeline.lane }) });
    this.place = -1;
    byId("matches").textContent = `${exactly(found.total)} found`;
    this.list();
  }

  /** Search for a name of a table. @param {string} name */
  async find(name) {
    // What is shown as an escape or cut off is any sign; ASCII signs that mean something to an expression are themselves.
    const plain = name.replace(/\\u[0-9a-f]{4}|…/g, " ");
    const pattern = plain.replace(/[!-/:-@[-^`{-~]/g, "\\$&").replace(/\s+/g, ".+");
    /** @type {HTMLInputElement} */ (byId("search")).value = pattern;
    await this.search(pattern, 0);
    if (this.page.total) await this.step(1);
  }

  /** List the page that is open. */
  list() {
    if (this.page === null) return this.timeline.say("Search first: /");
    const turn = (/** @type {number} */ page) => this.timeline.soon(() => this.search(this.page.pattern, page));
    this.timeline.panel(hitParts(this.page, (to) => this.timeline.soon(() => this.timeline.goTo(to)), turn));
    return undefined;
  }

  /** Go to another hit. @param {number} step */
  async step(step) {
    if (!this.page?.total) return this.timeline.say("Nothing was found: / searches.");
    let { page } = this.page;
    let next = this.place + step;
    if (this.place < 0 && step < 0) next = this.page.hits.length - 1;
    if (next < 0 || next >= this.page.hits.length) {
      page = (page + step + this.page.pages) % this.page.pages;
      if (page !== this.page.page) await this.search(this.page.pattern, page);
      next = step > 0 ? 0 : this.page.hits.length - 1;
    }
    this.place = next;
    byId("matches").textContent = `${exactly(this.page.before + next + 1)} of ${exactly(this.page.total)}`;
    return this.timeline.goTo(this.page.hits[next]);
  }
}
