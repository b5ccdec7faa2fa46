/** Steps from what is chosen on a timeline to what belongs to it. */

import { whole } from "./source.js";
import { duration } from "./words.js";

/** @typedef {import("./source.js").Place} Place */
/** @typedef {import("./timeline.js").Timeline} Timeline */

export class Walk {
  /** @param {Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
  }

  /** Where a walk begins that begins at nothing. @param {"next" | "previous"} way */
  edge(way) {
    const { looking, end } = this.timeline;
    return way === "next" ? Math.max(looking.from, 0) : Math.min(looking.to, end);
  }

  /** To a slice, or a time that is none. @param {Place} found */
  to(found) {
    if (found.slice) return this.timeline.goTo(found);
    this.timeline.select(found.from, found.to);
    return this.timeline.show(found.from, found.to);
  }

  /** Let the key that goes to the next slice go on to what follows the timeline on the page. @param {"next" | "previous"} way */
  leave(way) {
    const stops = [...document.querySelectorAll("a[href], button, input, select, summary, [tabindex='0']")].filter(
      (each) => each instanceof HTMLElement && each.offsetParent !== null && each.tabIndex >= 0,
    );
    const place = stops.indexOf(this.timeline.canvas) + (way === "next" ? 1 : -1);
    if (document.activeElement === this.timeline.canvas) /** @type {HTMLElement} */ (stops[place])?.focus();
  }

  /** To the slice beside it. @param {"next" | "previous"} way */
  async neighbour(way) {
    const { timeline } = this;
    const chosen = timeline.chosen?.lane === timeline.lane ? timeline.chosen : null;
    const found = await timeline.source.ask("neighbour", {
      ...(chosen && { slice: chosen.slice }),
      ...(!chosen && { lane: timeline.lane, time: whole(this.edge(way)) }),
      way,
      ...timeline.filters.asked,
    });
    if (found) return timeline.goTo(found);
    this.leave(way);
    const shown = Object.keys(timeline.filters.asked).length ? " that is shown" : "";
    return timeline.say(`There is no further slice in this lane${shown}.`);
  }

  /** To a time when nothing of the lane runs. @param {"next" | "previous"} way */
  async gap(way) {
    const { timeline } = this;
    const chosen = timeline.source.quick || timeline.chosen?.lane === timeline.lane ? timeline.chosen : null;
    const time = whole(timeline.selection?.from ?? chosen?.from ?? this.edge(way));
    const found = await timeline.source.ask("gap", { lane: timeline.lane, time, way });
    if (!found) return timeline.say("There is no further gap in this lane.");
    timeline.say(`gap of ${duration(found.to - found.from)}`);
    return this.to(found);
  }

  /** To a training step. @param {"next" | "previous"} way */
  async iteration(way) {
    const { timeline } = this;
    const { lane, looking } = timeline;
    const found = await timeline.source.ask("iteration", { lane, time: whole(looking.from), way });
    if (!found) return timeline.say("There is no further iteration.");
    timeline.looking.show(found.from, found.to);
    return timeline.say(found.label);
  }

  /** From a kernel to its launch, and back. */
  async launch() {
    const { timeline } = this;
    if (timeline.chosen === null) return timeline.say("Choose a slice first.");
    const found = await timeline.source.ask("follow", { slice: timeline.chosen.slice });
    return found ? this.to(found) : timeline.say("No launch of this is known.");
  }

  /** To the same communication on the next rank. */
  async peer() {
    const { timeline } = this;
    if (timeline.chosen === null) return timeline.say("Choose a communication first.");
    const found = await timeline.source.ask("members", { slice: timeline.chosen.slice });
    if (found.length < 2) return timeline.say("This is not matched with other ranks.");
    const root = timeline.lanes.rootOf(timeline.chosen.lane);
    const place = found.findIndex((/** @type {Place} */ one) => timeline.lanes.rootOf(one.lane) === root);
    const own = place >= 0 ? place : found.findIndex((/** @type {Place} */ one) => one.around.includes(root));
    return timeline.goTo(found[(own + 1) % found.length]);
  }

  /** Draw the critical path through the ranks, or no longer; where it is not known of all, go to that of the rank. */
  async path() {
    const { timeline } = this;
    if (timeline.about.path) return timeline.pathShown(!timeline.showsPath);
    const root = timeline.lanes.rootOf(timeline.lane);
    await timeline.lanes.unfold(root);
    const path = (timeline.lanes.below.get(root) ?? []).find((key) => timeline.lanes.known.get(key)?.kind === "path");
    if (path === undefined) return timeline.say("No critical path runs through this.");
    timeline.lane = path;
    timeline.keepRows();
    return timeline.reveal(path);
  }
}
