/** What was searched for on a timeline. */

import { exactly, hitParts } from "./panel.js";
import { changeAddress } from "./state.js";
import { byId } from "./words.js";

/** @typedef {import("./timeline.js").Timeline} Timeline */

export class Hits {
  /** @param {Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    /** @type {any} the page of hits that is open */
    this.page = null;
    /** of the hit that is shown, among those of the page */
    this.place = -1;
    const field = /** @type {HTMLInputElement} */ (byId("search"));
    field.addEventListener("input", () => {
      if (timeline.source.quick) timeline.soon(() => this.search(field.value));
    });
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") timeline.soon(() => this.enter(field.value, event.shiftKey ? -1 : 1));
    });
  }

  /** Search, or go on where that was searched for. @param {string} pattern @param {number} step */
  async enter(pattern, step) {
    if (this.page?.pattern === pattern) return this.step(step);
    await this.search(pattern);
    return this.page && this.list();
  }

  /** Find a pattern, and open a page of what it finds. @param {string} pattern @param {number} page @param {import("./source.js").Values} asked beside them */
  async search(pattern, page = 0, asked = {}) {
    if (!pattern) {
      this.page = null;
      byId("matches").textContent = "";
      changeAddress({ search: null, here: null });
      return;
    }
    const here = /** @type {HTMLInputElement} */ (byId("here")).checked;
    const { dimension } = this.timeline.lanes;
    const where = { ...(here && { lane: [this.timeline.lane] }), ...(!here && dimension && { dimension }) };
    const values = { pattern, page, ...asked, ...where, ...this.timeline.filters.asked };
    const found = await this.timeline.source.ask("search", values);
    this.page = { ...found, pattern, lanes: here ? this.timeline.lane : "" };
    changeAddress({ search: pattern, here: here ? "yes" : null, ...(here && { lane: this.timeline.lane }) });
    this.place = -1;
    byId("matches").textContent = found.words ?? `${exactly(found.total)} found`;
  }

  /** Search again, since other slices are shown; a source that takes its time is not asked. */
  again() {
    if (this.page && this.timeline.source.quick) this.timeline.soon(() => this.search(this.page.pattern));
  }

  /** Search for a name, and go to the first slice that has all of it. @param {string} name @param {string} [lane] */
  async find(name, lane) {
    const pattern = this.timeline.source.pattern(name);
    /** @type {HTMLInputElement} */ (byId("search")).value = pattern;
    const own = { name, ...(lane && { lane: [lane] }) };
    await this.search(pattern, 0, own);
    if (!this.page.total) await this.search(pattern);
    if (this.page.total) await this.step(1);
  }

  /** List the page that is open. */
  list() {
    if (this.page === null) return this.timeline.say("Search first: /");
    const turn = (/** @type {number} */ page) =>
      this.timeline.soon(async () => {
        await this.search(this.page.pattern, page);
        this.list();
      });
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
