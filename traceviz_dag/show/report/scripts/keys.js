/** The keys, the same on every page and in the terminal. */

import { byId, copied, element } from "./words.js";

/** @type {[string[], string, string][]} keys, name of what they do, and its words */
const KEYS = [
  [["ArrowLeft", "a"], "left", "move left"],
  [["ArrowRight", "d"], "right", "move right"],
  [["+", "=", "w"], "in", "zoom in"],
  [["-", "s"], "out", "zoom out"],
  [["0"], "all", "show all"],
  [["z"], "selection", "zoom to the selection"],
  [["u"], "undo", "undo a move"],
  [["U"], "redo", "redo it"],
  [["ArrowDown", "j"], "laneDown", "next lane"],
  [["ArrowUp", "k"], "laneUp", "previous lane"],
  [[" "], "toggle", "open or close the lane"],
  [["p"], "pin", "pin the lane to the top, or let it go"],
  [["J"], "lower", "move the lane down"],
  [["K"], "higher", "move the lane up"],
  [["Tab"], "next", "next slice"],
  [["Shift+Tab"], "previous", "previous slice"],
  [["g"], "gap", "next gap"],
  [["G"], "gapBefore", "previous gap"],
  [["i"], "step", "next training step"],
  [["I"], "stepBefore", "previous training step"],
  [["x"], "launch", "go to the launch"],
  [["o"], "peer", "the same communication on the next rank"],
  [["["], "selectFrom", "begin the selection at the slice, or where the view begins"],
  [["]"], "selectTo", "end it there"],
  [["m"], "measure", "measure what is shown or selected"],
  [["M"], "measureAll", "measure all ranks or GPUs"],
  [["/"], "search", "search"],
  [["n"], "nextMatch", "next match"],
  [["N"], "previousMatch", "previous match"],
  [["h"], "hits", "list what was found"],
  [["b"], "bookmark", "bookmark this view"],
  [["y"], "copy", "copy the SQL"],
  [["Y"], "copyCommand", "copy the command"],
  [["c"], "path", "show or hide the critical path"],
  [["f"], "findings", "findings"],
  [["t"], "timeline", "timeline"],
  [["?"], "help", "help"],
  [["q", "Escape"], "back", "back"],
];

const BY_KEY = new Map(
  KEYS.flatMap(([keys, action]) => keys.map((key) => /** @type {[string, string]} */ ([key, action]))),
);

/** The action of a key; undefined for others, and while a field is typed into. @param {KeyboardEvent} event */
function actionOf(event) {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey) return undefined;
  if (target.matches("input, textarea, select")) return event.key === "Escape" ? "back" : undefined;
  if (event.key === "Tab") return BY_KEY.get(event.shiftKey ? "Shift+Tab" : "Tab");
  return BY_KEY.get(cased(event));
}

/**
 * A letter as it would be without Caps Lock; a capital that means nothing is its small letter.
 * @param {KeyboardEvent} event
 */
function cased(event) {
  const small = event.key.toLowerCase();
  if (event.key.length > 1 || small === event.key.toUpperCase()) return event.key;
  const capital = (event.key !== small) !== event.getModifierState("CapsLock");
  return capital && BY_KEY.has(small.toUpperCase()) ? small.toUpperCase() : small;
}

/**
 * Do what keys and buttons of a page ask for, and list the keys in its help.
 * @param {() => import("./timeline.js").Timeline | null} timeline
 * @param {(action: string) => boolean | null} act what the page itself does; null for what is the timeline's
 * @param {(action: string, words: string) => string | null} words of a key here; null where it means nothing here
 */
export function listenToKeys(timeline, act, words = (_, usual) => usual) {
  const acted = (/** @type {string} */ action) =>
    actOnAny(timeline(), action) ?? act(action) ?? actOn(timeline(), action);
  document.addEventListener("keydown", (event) => {
    const action = actionOf(event);
    if (action !== undefined && acted(action)) event.preventDefault();
  });
  for (const [keys, action, usual] of KEYS) {
    const told = words(action, usual);
    if (told === null) continue;
    const names = element("dt");
    for (const key of keys) names.append(element("kbd", {}, key === " " ? "Space" : keyName(key)), " ");
    byId("keys").append(names, element("dd", {}, told));
  }
  for (const button of document.querySelectorAll("[data-close]"))
    button.addEventListener("click", () => button.closest("dialog")?.close());
  for (const button of document.querySelectorAll("[data-act]"))
    button.addEventListener("click", () => acted(/** @type {HTMLElement} */ (button).dataset.act ?? ""));
}

/** @param {string} key as a keyboard shows it */
function keyName(key) {
  return key.replace("Arrow", "").replace("Left", "←").replace("Right", "→").replace("Up", "↑").replace("Down", "↓");
}

/**
 * What keys do on every page: while a dialog lies above it nothing else; null for what is the page's.
 * @param {import("./timeline.js").Timeline | null} timeline
 * @param {string} action
 */
function actOnAny(timeline, action) {
  const dialog = /** @type {HTMLDialogElement | null} */ (document.querySelector("dialog[open]"));
  if (dialog !== null) {
    const sql = dialog.querySelector("code")?.textContent;
    if (action === "back") dialog.close();
    else if (action === "copy" && sql) void copied(sql);
    return action === "back" || (action === "copy" && Boolean(sql));
  }
  if (action === "help") {
    /** @type {HTMLDialogElement} */ (byId("help")).showModal();
    return true;
  }
  if (action === "back" && document.activeElement instanceof HTMLInputElement) {
    if (timeline?.canvas.offsetParent) timeline.canvas.focus({ preventScroll: true });
    else document.activeElement.blur();
    return true;
  }
  return null;
}

/** What keys do on the timeline; false where they are not its. @param {import("./timeline.js").Timeline | null} timeline @param {string} action */
function actOn(timeline, action) {
  if (!timeline?.canvas.offsetParent) return false;
  // Elsewhere on the page these keys move the focus and press buttons.
  if (["next", "previous", "toggle"].includes(action) && document.activeElement !== timeline.canvas) return false;
  return timeline.act(action);
}
