/** Steps from what is chosen on a live timeline to what belongs to it. */

import { whole } from "./live_source.js";
import { duration } from "./words.js";

/** @typedef {import("./live_panel.js").Place} Place */
/** @typedef {import("./live_timeline.js").LiveTimeline} LiveTimeline */

export class Walk {
  /** @param {LiveTimeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
  }

  /** To the slice beside it. @param {"next" | "previous"} way */
  async neighbour(way) {
    const { timeline } = this;
    const middle = Math.round((timeline.looking.from + timeline.looking.to) / 2);
    const chosen = timeline.chosen?.lane === timeline.lane ? timeline.chosen : null;
    const found = await timeline.source.ask("neighbour", {
      ...(chosen && { slice: chosen.slice }),
      ...(!chosen && { lane: timeline.lane, time: whole(middle) }),
      way,
      ...timeline.filters.asked,
    });
    if (found) return timeline.goTo(found);
    const shown = Object.keys(timeline.filters.asked).length ? " that is shown" : "";
    return timeline.say(`There is no further slice in this lane${shown}.`);
  }

  /** To a time when nothing of the lane runs. @param {"next" | "previous"} way */
  async gap(way) {
    const { timeline } = this;
    const middle = (timeline.looking.from + timeline.looking.to) / 2;
    const here =
      timeline.selection ?? (timeline.chosen?.lane === timeline.lane ? timeline.chosen : { from: middle, to: middle });
    const time = whole(here.from);
    const found = await timeline.source.ask("gap", { lane: timeline.lane, time, way });
    if (!found) return timeline.say("There is no further gap in this lane.");
    timeline.select(found.from, found.to);
    timeline.say(`gap of ${duration(found.to - found.from)}`);
    return timeline.show(found.from, found.to);
  }

  /** To a training step. @param {"next" | "previous"} way */
  async iteration(way) {
    const { timeline } = this;
    const found = await timeline.source.ask("iteration", { time: whole(timeline.looking.from), way });
    if (!found) return timeline.say("There is no further iteration.");
    timeline.looking.show(found.from, found.to);
    return timeline.say(found.label);
  }

  /** From a kernel to its launch, and back. */
  async launch() {
    const { timeline } = this;
    if (timeline.chosen === null) return timeline.say("Choose a slice first.");
    const found = await timeline.source.ask("follow", { slice: timeline.chosen.slice });
    return found ? timeline.goTo(found) : timeline.say("No launch of this is known.");
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

  /** To the critical path of the rank. */
  async path() {
    const { timeline } = this;
    const root = timeline.lanes.rootOf(timeline.lane);
    await timeline.lanes.unfold(root);
    const path = (timeline.lanes.below.get(root) ?? []).find((key) => timeline.lanes.known.get(key)?.kind === "path");
    if (path === undefined) return timeline.say("No critical path runs through this.");
    timeline.lane = path;
    timeline.keepRows();
    return timeline.reveal(path);
  }
}
