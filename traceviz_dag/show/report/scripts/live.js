/** A live page: its keys, its buttons, and the timeline once the server has told what there is. */

import { listenToKeys } from "./keys.js";
import { ServedSource } from "./served_source.js";
import { readAddress } from "./state.js";
import { Timeline } from "./timeline.js";
import { byId, element } from "./words.js";

/** @type {Timeline | null} */
let timeline = null;

async function begin() {
  listenToKeys(
    () => timeline,
    () => null,
    (action, usual) => (action === "path" ? "go to the critical path" : usual),
  );
  const source = new ServedSource(location.pathname);
  source.say = (words) => {
    byId("said").textContent = words;
  };
  const about = await source.ask("about");
  source.state = about.state;
  byId("said").textContent = "";
  const shown = new Timeline(source, about);
  timeline = shown;
  Object.assign(window, { traceviz: { timeline } });
  byId("notes").replaceChildren(
    ...about.notes.map((/** @type {string} */ note) => element("p", { class: "quiet" }, note)),
    ...(about.marks_left ? [element("p", { class: "quiet" }, `${about.marks_left} marks more are not shown.`)] : []),
  );
  await shown.soon(() => shown.fromAddress());
  if (new URLSearchParams(location.search).has("measure")) await shown.soon(() => shown.measure(true));
  window.addEventListener("hashchange", () => {
    readAddress();
    void shown.soon(() => shown.fromAddress());
  });
  shown.canvas.focus({ preventScroll: true });
  shown.draw();
  document.body.dataset.ready = "yes";
}

begin().catch((error) => {
  document.body.dataset.ready = "failed";
  const words = byId("failure");
  words.hidden = false;
  words.textContent = String(error.message ?? error);
});
