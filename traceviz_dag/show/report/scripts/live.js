/** A live page: its keys, its buttons, and the timeline once the server has told what there is. */

import { listenToKeys } from "./keys.js";
import { Source } from "./live_source.js";
import { LiveTimeline } from "./live_timeline.js";
import { readAddress } from "./state.js";
import { byId, element } from "./words.js";

/** @type {[string[], string, string][]} beside those of all pages: keys, what they do, words */
const FURTHER = [
  [["ArrowDown", "j"], "laneDown", "next lane"],
  [["ArrowUp", "k"], "laneUp", "previous lane"],
  [[" "], "toggle", "open or close the lane"],
  [["p"], "pin", "pin the lane to the top, or let it go"],
  [["J"], "lower", "move the lane down"],
  [["K"], "higher", "move the lane up"],
  [["I"], "stepBefore", "previous training step"],
  [["o"], "peer", "the same communication on the next rank"],
  [["["], "selectFrom", "begin the selection at the slice, or where the view begins"],
  [["]"], "selectTo", "end it there"],
  [["M"], "measureAll", "measure all ranks or GPUs"],
  [["h"], "hits", "list what was found"],
  [["Y"], "copyCommand", "copy the command"],
];
/** What only these keys mean here. @type {Record<string, string>} */
const HERE = { path: "go to the critical path" };

/** @type {LiveTimeline | null} */
let timeline = null;

/** @param {string} action */
function act(action) {
  const dialog = /** @type {HTMLDialogElement | null} */ (document.querySelector("dialog[open]"));
  if (dialog !== null) {
    if (action === "back") dialog.close();
    return action === "back";
  }
  if (action === "help") {
    /** @type {HTMLDialogElement} */ (byId("help")).showModal();
    return true;
  }
  if (action === "back" && document.activeElement instanceof HTMLInputElement) {
    timeline?.canvas.focus();
    return true;
  }
  const onCanvas = document.activeElement === timeline?.canvas;
  // Elsewhere on the page these keys move the focus and press buttons.
  if (["next", "previous", "toggle"].includes(action) && !onCanvas) return false;
  return timeline?.act(action) ?? false;
}

async function begin() {
  listenToKeys(act, FURTHER, (action, usual) => HERE[action] ?? usual);
  const source = new Source(location.pathname);
  source.say = (words) => {
    byId("said").textContent = words;
  };
  const about = await source.ask("about");
  source.state = about.state;
  byId("said").textContent = "";
  timeline = new LiveTimeline(source, about);
  Object.assign(window, { traceviz: { timeline } });
  byId("notes").replaceChildren(
    ...about.notes.map((/** @type {string} */ note) => element("p", { class: "quiet" }, note)),
    ...(about.marks_left ? [element("p", { class: "quiet" }, `${about.marks_left} marks more are not shown.`)] : []),
  );
  timeline.marks.showBookmarks(about.bookmarks);
  const shown = timeline;
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
