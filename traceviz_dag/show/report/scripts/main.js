/** The page: its tabs, keys, facts with their queries, and the timeline once its data are unpacked. */

import { inflated, unpacked } from "./columns.js";
import { listenToPairs } from "./drill.js";
import { InlineSource } from "./inline_source.js";
import { listenToKeys } from "./keys.js";
import { measured } from "./measure.js";
import { Model } from "./model.js";
import { watchScrolling } from "./scrolling.js";
import { address, changeAddress, readAddress } from "./state.js";
import { Timeline } from "./timeline.js";
import { WhatIf } from "./what_if.js";
import { byId, copyable } from "./words.js";

/** @type {Timeline | null} */
let timeline = null;

/** @type {{what: import("./what_if.js").Described, columns: Map<string, Float64Array>} | null} */
let replayed = null;
/** @type {WhatIf | null} */
let whatIf = null;

/** @returns {HTMLElement[]} */
function tabs() {
  return [...document.querySelectorAll("[role=tab]")].map((tab) => /** @type {HTMLElement} */ (tab));
}

/** Show a part of the page. @param {string} name @param {boolean} focus */
function show(name, focus = false) {
  const known = tabs();
  if (!known.some((tab) => tab.dataset.part === name)) return;
  for (const tab of known) {
    const chosen = tab.dataset.part === name;
    tab.setAttribute("aria-selected", String(chosen));
    tab.tabIndex = chosen ? 0 : -1;
    if (chosen && focus) tab.focus();
    byId(`part-${tab.dataset.part}`).hidden = !chosen;
  }
  changeAddress({ part: name });
  if (name === "timeline") timeline?.draw();
  if (name === "what-if") openWhatIf();
}

/** Lay the steps out to be replayed, once somebody looks. */
function openWhatIf() {
  if (replayed === null || whatIf !== null) return;
  whatIf = new WhatIf(replayed.what, replayed.columns);
  whatIf.show();
}

function listenToTabs() {
  const known = tabs();
  known.forEach((tab, place) => {
    tab.addEventListener("click", () => show(tab.dataset.part ?? ""));
    tab.addEventListener("keydown", (event) => {
      const step = event.key === "ArrowRight" ? 1 : event.key === "ArrowLeft" ? -1 : 0;
      if (!step) return;
      event.preventDefault();
      event.stopPropagation();
      show(known[(place + step + known.length) % known.length].dataset.part ?? "", true);
    });
  });
}

/** A number's query and rows, shown beneath what it stands in. */
function listenToFacts() {
  document.addEventListener("click", (event) => {
    const fact = /** @type {HTMLElement} */ (event.target).closest("[data-evidence]");
    if (!(fact instanceof HTMLElement)) return;
    event.preventDefault();
    const source = byId(fact.dataset.evidence ?? "");
    const panel = /** @type {HTMLDialogElement} */ (byId("evidence"));
    const body = byId("evidence-body");
    const copy = /** @type {HTMLTemplateElement} */ (source).content.cloneNode(true);
    body.replaceChildren(copy);
    for (const code of body.querySelectorAll("pre.query")) code.replaceWith(copyable(code.textContent ?? ""));
    panel.showModal();
  });
  byId("evidence-close").addEventListener("click", () => /** @type {HTMLDialogElement} */ (byId("evidence")).close());
}

/** Links of findings: to the rank at fault, and to where it shows in time; and links to other parts. */
function listenToFindings() {
  for (const link of document.querySelectorAll("[data-finding]")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      const target = /** @type {HTMLElement} */ (link);
      toTimeline();
      void timeline?.soon(async () => timeline?.toFinding(target.dataset.finding ?? ""));
    });
  }
  for (const link of document.querySelectorAll("[data-goto]")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      show(/** @type {HTMLElement} */ (link).dataset.goto ?? "", true);
    });
  }
}

/** Names in tables: to where they are on the timeline. */
function listenToNames() {
  for (const name of document.querySelectorAll("[data-find]")) {
    name.addEventListener("click", () => {
      const { find, rank } = /** @type {HTMLElement} */ (name).dataset;
      toTimeline();
      void timeline?.soon(async () => timeline?.hits.find(find ?? "", `gpu:${rank}`));
    });
  }
}

/** Show the timeline, so that the keys that follow are its own. */
function toTimeline() {
  show("timeline");
  timeline?.canvas.focus({ preventScroll: true });
}

/** What keys do beside the timeline; null for what is the timeline's. @param {string} action */
function act(action) {
  if (!has(action)) return false;
  if (action === "back") {
    if (!timeline?.back()) show(tabs()[0].dataset.part ?? "", true);
    timeline?.draw();
    return true;
  }
  if (action === "findings") {
    show(action);
    const card = document.querySelector("#part-findings .card");
    (card instanceof HTMLElement ? card : byId("tab-findings")).focus();
    return true;
  }
  if (action === "timeline" || action === "search") toTimeline();
  return null;
}

/** Whether the page has what a key is for. @param {string} action */
function has(action) {
  if (action === "path") return document.getElementById("path-button") !== null;
  return action !== "findings" || document.getElementById("tab-findings") !== null;
}

async function begin() {
  listenToTabs();
  listenToFacts();
  listenToKeys(
    () => timeline,
    act,
    (action, usual) => (has(action) ? usual : null),
  );
  listenToPairs();
  watchScrolling();
  show(address().get("part") ?? tabs()[0].dataset.part ?? "");
  const { document: described, columns } = unpacked(await inflated(byId("data").textContent ?? ""));
  const model = new Model(described, columns);
  const source = new InlineSource(model);
  const shown = new Timeline(source, await source.ask("about"));
  timeline = shown;
  Object.assign(window, { traceviz: { model, timeline, source, measured } });
  await shown.soon(() => shown.fromAddress());
  listenToFindings();
  listenToNames();
  if (described.what_if) replayed = { what: described.what_if, columns };
  if (address().get("part") === "what-if") openWhatIf();
  window.addEventListener("hashchange", () => {
    readAddress();
    show(address().get("part") ?? tabs()[0].dataset.part ?? "");
    void shown.soon(() => shown.fromAddress());
    whatIf?.fromAddress();
  });
  window.addEventListener("beforeprint", () => {
    // All parts are laid out before they are drawn: what was never shown has no size.
    document.body.classList.add("printing");
    openWhatIf();
    whatIf?.draw();
    shown.print(true);
  });
  window.addEventListener("afterprint", () => {
    document.body.classList.remove("printing");
    shown.print(false);
  });
  document.body.dataset.ready = "yes";
}

begin().catch((error) => {
  document.body.dataset.ready = "failed";
  const words = byId("failure");
  words.hidden = false;
  words.textContent = `This page could not read its own data (${error}). Use a newer browser, or make the report again.`;
});
