/** The keys, the same in the report, the terminal and the live page. */

import { byId, element } from "./words.js";

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
  [["Tab"], "next", "next slice"],
  [["Shift+Tab"], "previous", "previous slice"],
  [["g"], "gap", "next gap"],
  [["G"], "gapBefore", "previous gap"],
  [["i"], "step", "next training step"],
  [["x"], "launch", "go to the launch"],
  [["m"], "measure", "measure what is shown or selected"],
  [["/"], "search", "search"],
  [["n"], "nextMatch", "next match"],
  [["N"], "previousMatch", "previous match"],
  [["b"], "bookmark", "bookmark this view"],
  [["y"], "copy", "copy the SQL"],
  [["c"], "path", "show or hide the critical path"],
  [["f"], "findings", "findings"],
  [["t"], "timeline", "timeline"],
  [["?"], "help", "help"],
  [["q", "Escape"], "back", "back"],
];

const BY_KEY = new Map(
  KEYS.flatMap(([keys, action]) => keys.map((key) => /** @type {[string, string]} */ ([key, action]))),
);

/**
 * The action of a key; undefined for others, and while a field is typed into.
 * @param {KeyboardEvent} event
 * @param {Map<string, string>} further keys that a page has beside those of all, and their actions
 */
function actionOf(event, further) {
  const target = /** @type {HTMLElement} */ (event.target);
  if (event.ctrlKey || event.metaKey || event.altKey) return undefined;
  if (target.matches("input, textarea, select")) return event.key === "Escape" ? "back" : undefined;
  if (event.key === "Tab") return BY_KEY.get(event.shiftKey ? "Shift+Tab" : "Tab");
  return further.get(event.key) ?? BY_KEY.get(cased(event));
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
 * @param {(action: string) => boolean} act whether the action did something
 * @param {[string[], string, string][]} [further] keys that the page has beside those of all
 * @param {(action: string, words: string) => string | null} [words] of a key here; null where it means nothing here
 */
export function listenToKeys(act, further = [], words = (_, usual) => usual) {
  const own = new Map(further.flatMap(([keys, action]) => keys.map((key) => [key, action])));
  document.addEventListener("keydown", (event) => {
    const action = actionOf(event, own);
    if (action !== undefined && act(action)) event.preventDefault();
  });
  for (const [keys, action, usual] of [...KEYS, ...further]) {
    const told = words(action, usual);
    if (told === null) continue;
    const names = element("dt");
    for (const key of keys) names.append(element("kbd", {}, key === " " ? "Space" : keyName(key)), " ");
    byId("keys").append(names, element("dd", {}, told));
  }
  for (const button of document.querySelectorAll("[data-close]"))
    button.addEventListener("click", () => button.closest("dialog")?.close());
  for (const button of document.querySelectorAll("[data-act]"))
    button.addEventListener("click", () => act(/** @type {HTMLElement} */ (button).dataset.act ?? ""));
}

/** @param {string} key as a keyboard shows it */
function keyName(key) {
  return key.replace("Arrow", "").replace("Left", "←").replace("Right", "→").replace("Up", "↑").replace("Down", "↓");
}
