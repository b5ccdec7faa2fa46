/** The part "What if": edits to choose from, and what the replay of the step says of them. */

import { GENERAL, hasUnmatched, spelledOut, TOGETHER } from "./edits.js";
import { Predictions } from "./predictions.js";
import { Step } from "./replay.js";
import { address, changeAddress } from "./state.js";
import { byId, copyable, element, exact, share } from "./words.js";

/** @typedef {import("./edits.js").Edit} Edit */
/** @typedef {import("./predictions.js").Gain} Gain */
/** @typedef {import("./replay.js").StepFacts} StepFacts */

/**
 * @typedef {object} Described
 * @property {(StepFacts & {columns: string[]})[]} steps
 * @property {{edit: string, rank: number | null, ranks: string | null, dimension: string | null, factor: number | null}[]} usual
 * @property {string} command
 */

const FASTEST = 20;
const TWICE = 2;

/** What the page offers, and what is chosen of it. */
export class WhatIf {
  /** Adds a check box for a rank, by the edit's name. @type {Record<string, (rank: number) => void>} */
  addRank = {};
  /** How many times faster a dimension is to be, by its word. @type {Map<string, HTMLInputElement>} */
  sliders = new Map();
  /** Whether a prediction is on its way to the screen. */
  waiting = false;

  /** @param {Described} described @param {Map<string, Float64Array>} columns of the page */
  constructor(described, columns) {
    this.described = described;
    const steps = described.steps.map((facts, place) => {
      const own = Object.fromEntries(
        facts.columns.map((name) => [name, columns.get(`what_if/${place}/${name}`) ?? new Float64Array()]),
      );
      return new Step(facts, own);
    });
    this.predictions = new Predictions(steps);
    const first = steps[0].facts;
    /** Ranks and dimensions that every step has. */
    this.ranks = first.ranks.filter((rank) => steps.every((step) => step.facts.ranks.includes(rank)));
    const known = first.dimensions.filter((one) => one !== null);
    this.dimensions = known.filter((one) => steps.every((step) => step.facts.dimensions.includes(one)));
    this.unmatched = new Set(
      [...this.dimensions, "all"].filter((one) => steps.some((step) => hasUnmatched(step, one))),
    );
    this.steps = steps;
    /** @type {Map<string, Edit>} */
    this.chosen = new Map();
    /** @type {Map<string, HTMLInputElement>} */
    this.boxes = new Map();
    /** @type {Map<string, number>} */
    this.factors = new Map();
  }

  /** The edits that are chosen, in the order in which `traceviz what-if` applies them. */
  edits() {
    return [...this.chosen.values()].sort((one, other) => this.placeOf(one) - this.placeOf(other));
  }

  /** @param {Edit} edit */
  placeOf(edit) {
    const kinds = ["fix_rank", ...TOGETHER, "fix_link", ...GENERAL, "hide", "faster"];
    const first = edit.ranks === undefined ? edit.rank : spelledOut(edit.ranks)[0];
    const within = first ?? [...this.dimensions, "all"].indexOf(edit.dimension ?? "");
    return kinds.indexOf(edit.name) * 1e9 + within;
  }

  /** Why a step shows nothing of an edit; null where all do. @param {string} name */
  refusal(name) {
    if (name === "fix_rank" && this.ranks.length < 2) return "only one rank was read, so nothing shows what is usual";
    const found = this.steps.find((step) => step.facts.refusals[name] !== undefined);
    return found?.facts.refusals[name] ?? null;
  }

  /** The command that predicts the same. */
  command() {
    return [this.described.command, ...this.edits().map(option)].join(" ");
  }

  /** Fill the part. */
  show() {
    this.offer();
    this.listenToTable();
    this.fromAddress();
  }

  /** The controls. */
  offer() {
    const suspects = ["fix_rank", "fix_link"].map((name) =>
      this.described.usual.flatMap((one) => (one.edit === name && one.rank !== null ? [one.rank] : [])),
    );
    const job = GENERAL.map((name) => this.box({ name }));
    const communication = [...this.dimensions, ...(this.dimensions.length ? ["all"] : [])].map((dimension) =>
      this.dimensionRow(dimension),
    );
    const together = this.together().map((edit) => this.box(edit));
    byId("what-if-choices").replaceChildren(
      this.ranksGroup("Ranks", "fix_rank", suspects[0]),
      ...(together.length ? [group("Slow together", ...together)] : []),
      this.ranksGroup("Links", "fix_link", suspects[1]),
      group("The whole job", ...job),
      group("Communication", ...(communication.length ? communication : [element("p", {}, "There is none.")])),
      this.clearButton(),
    );
    byId("what-if-choices").addEventListener("submit", (event) => event.preventDefault());
  }

  /** The edits of ranks that are slow together. @returns {Edit[]} */
  together() {
    return this.described.usual.flatMap((one) => (one.ranks === null ? [] : [{ name: one.edit, ranks: one.ranks }]));
  }

  /** A check box for an edit. @param {Edit} edit @param {string} words */
  box(edit, words = named(edit)) {
    const box = /** @type {HTMLInputElement} */ (element("input", { type: "checkbox" }));
    const refusal = this.refusal(edit.name);
    const key = keyOf(edit);
    box.disabled = refusal !== null;
    box.addEventListener("change", () => this.choose({ ...edit, ...this.factorOf(edit) }, box.checked));
    this.boxes.set(key, box);
    const label = element("label", {}, box, ` ${words}`);
    if (refusal !== null) label.append(element("span", { class: "quiet" }, ` (${refusal})`));
    return element("div", {}, label);
  }

  /** @param {Edit} edit */
  factorOf(edit) {
    return edit.name === "faster" ? { factor: this.factors.get(edit.dimension ?? "") ?? TWICE } : {};
  }

  /** Check boxes of some ranks, and a list of all others to add. @param {string} title @param {string} name @param {number[]} suspects */
  ranksGroup(title, name, suspects) {
    const boxes = element("div");
    /** @param {number} rank */
    const add = (rank) => {
      if (!this.boxes.has(keyOf({ name, rank }))) boxes.append(this.box({ name, rank }));
    };
    for (const rank of suspects) if (this.ranks.includes(rank)) add(rank);
    const list = /** @type {HTMLSelectElement} */ (element("select", { "aria-label": `${title}: another rank` }));
    list.append(element("option", { value: "" }, `${named({ name })} …`));
    for (const rank of this.ranks) list.append(element("option", { value: String(rank) }, `rank ${rank}`));
    list.disabled = this.refusal(name) !== null;
    list.addEventListener("change", () => {
      if (list.value === "") return;
      const edit = { name, rank: Number(list.value) };
      add(edit.rank);
      this.choose(edit, true);
      list.value = "";
    });
    this.addRank[name] = add;
    const refusal = this.refusal(name);
    return group(title, boxes, refusal === null ? list : element("p", { class: "quiet" }, `${refusal}.`));
  }

  /** Hide a dimension, or make it faster. @param {string} dimension */
  dimensionRow(dimension) {
    const words = dimension === "all" ? "all communication" : capitals(dimension);
    const slider = /** @type {HTMLInputElement} */ (
      element("input", { type: "range", min: "1.1", max: String(FASTEST), step: "0.1", value: String(TWICE) })
    );
    slider.setAttribute("aria-label", `times faster, ${words}`);
    const shown = element("output", {}, `${TWICE} ×`);
    slider.addEventListener("input", () => {
      const factor = Number(slider.value);
      this.factors.set(dimension, factor);
      shown.textContent = `${brief(factor)} ×`;
      slider.setAttribute("aria-valuetext", `${brief(factor)} times faster`);
      this.choose({ name: "faster", dimension, factor }, true);
    });
    this.sliders.set(dimension, slider);
    return element(
      "div",
      { class: "choice" },
      element("span", {}, capitals(dimension)),
      this.box({ name: "hide", dimension }, "hide"),
      this.box({ name: "faster", dimension }, "faster"),
      slider,
      shown,
    );
  }

  clearButton() {
    const button = element("button", { type: "button" }, "choose none");
    button.addEventListener("click", () => {
      this.chosen.clear();
      this.answer();
    });
    return button;
  }

  /** @param {Edit} edit @param {boolean} wanted */
  choose(edit, wanted) {
    const key = keyOf(edit);
    if (wanted) this.chosen.set(key, edit);
    else this.chosen.delete(key);
    this.answer();
  }

  /** Say what the chosen edits gain. A slider asks more often than a screen is drawn. */
  answer() {
    for (const [key, box] of this.boxes) box.checked = this.chosen.has(key);
    const chosen = new Set(this.edits().map(written));
    for (const button of tableButtons())
      button.setAttribute("aria-pressed", String(chosen.has(button.dataset.edit ?? "")));
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.draw();
    });
  }

  draw() {
    const edits = this.edits();
    const words = edits.map(written).join(",");
    changeAddress({ edits: words || null });
    const panel = byId("what-if-answer");
    try {
      const gain = this.predictions.predict(edits);
      panel.replaceChildren(...this.told(gain, edits));
      Object.assign(panel.dataset, gain, { edits: words });
    } catch (error) {
      for (const name of ["step", "predicted", "gain", "low", "high"]) delete panel.dataset[name];
      panel.dataset.edits = words;
      const reason = error instanceof Error ? error.message : String(error);
      panel.replaceChildren(element("p", { class: "attention" }, `Nothing can be predicted: ${reason}.`));
    }
  }

  /** @param {Gain} gain @param {Edit[]} edits */
  told(gain, edits) {
    const several = this.steps.length > 1 ? `${this.steps.length} steps` : "step";
    const title = edits.length
      ? `${milliseconds(gain.predicted)} ms, in place of ${milliseconds(gain.step)} ms`
      : `${milliseconds(gain.step)} ms as it was; choose an edit`;
    drawBars(gain, several, edits.length > 0);
    /** @type {HTMLElement[]} */
    const parts = [element("h3", {}, title)];
    if (edits.length) {
      const rows = [
        ["gain", gain.gain],
        ["at least", gain.low],
        ["at most", gain.high],
        ["step then", gain.predicted],
      ].map(([word, ns]) => entry(String(word), Number(ns), gain.step));
      parts.push(element("table", {}, element("tbody", {}, ...rows)));
      const unmatched = edits.some((edit) => edit.dimension !== undefined && this.unmatched.has(edit.dimension));
      if (unmatched) {
        parts.push(
          element("p", { class: "quiet" }, "Some communications have no known peers: at most they are all transfer."),
        );
      }
    }
    parts.push(element("h4", {}, "The same on the command line"), copyable(this.command()));
    return parts;
  }

  /** The table of single edits: its buttons choose. */
  listenToTable() {
    for (const button of tableButtons()) {
      const edit = this.read(button.dataset.edit ?? "");
      if (edit === null) continue;
      button.disabled = false;
      button.addEventListener("click", () => {
        const known = this.chosen.get(keyOf(edit));
        const wanted = known === undefined || known.factor !== edit.factor;
        if (edit.factor !== undefined && wanted) this.setFactor(edit.dimension ?? "", edit.factor);
        this.choose(edit, wanted);
      });
    }
  }

  /** @param {string} dimension @param {number} factor */
  setFactor(dimension, factor) {
    this.factors.set(dimension, factor);
    const slider = this.sliders.get(dimension);
    if (slider === undefined) return;
    slider.value = String(factor);
    const shown = slider.nextElementSibling;
    if (shown !== null) shown.textContent = `${brief(factor)} ×`;
  }

  /** Take over the edits of the page's address. */
  fromAddress() {
    this.chosen.clear();
    for (const word of (address().get("edits") ?? "").split(",")) {
      const edit = this.read(word);
      if (edit === null) continue;
      if (edit.rank !== undefined) this.addRank[edit.name](edit.rank);
      if (edit.factor !== undefined) this.setFactor(edit.dimension ?? "", edit.factor);
      this.chosen.set(keyOf(edit), edit);
    }
    this.answer();
  }

  /** An edit of the address; null where the page does not offer it. @param {string} word @returns {Edit | null} */
  read(word) {
    const [name, what = ""] = word.split(":");
    if (this.refusal(name) !== null) return null;
    if (GENERAL.includes(name)) return what === "" ? { name } : null;
    if (name === "fix_rank" || name === "fix_link") {
      return this.ranks.includes(Number(what)) && what !== "" ? { name, rank: Number(what) } : null;
    }
    const known = this.together().find((one) => one.name === name && written(one) === word);
    if (known !== undefined || TOGETHER.includes(name)) return known ?? null;
    const [dimension, factor] = what.split("=");
    if (![...this.dimensions, "all"].includes(dimension)) return null;
    if (name === "hide") return { name, dimension };
    const times = Number(factor);
    return name === "faster" && times > 1 && times < Infinity ? { name, dimension, factor: times } : null;
  }
}

/** @returns {HTMLButtonElement[]} */
function tableButtons() {
  return [...document.querySelectorAll("button[data-edit]")].map((one) => /** @type {HTMLButtonElement} */ (one));
}

/** What distinguishes an edit from others that can be chosen beside it. @param {Edit} edit */
function keyOf(edit) {
  return `${edit.name}:${edit.ranks ?? edit.rank ?? edit.dimension ?? ""}`;
}

/** An edit in the page's address. @param {Edit} edit */
function written(edit) {
  const what = edit.ranks?.replaceAll(", ", "+") ?? edit.rank ?? edit.dimension;
  if (what === undefined) return edit.name;
  return `${edit.name}:${what}${edit.factor === undefined ? "" : `=${edit.factor}`}`;
}

/** An edit as an option of `traceviz what-if`. @param {Edit} edit */
function option(edit) {
  const name = `--${edit.name.replaceAll("_", "-")}`;
  if (edit.name === "fix_group" || edit.name === "fix_node") return `${name} ${spelledOut(edit.ranks ?? "")[0]}`;
  const what = edit.ranks?.replaceAll(" ", "") ?? edit.rank ?? edit.dimension;
  if (what === undefined) return name;
  return `${name} ${what}${edit.factor === undefined ? "" : `=${edit.factor}`}`;
}

/** An edit in words, those of the command. @param {Edit} edit */
export function named(edit) {
  const communication = `${edit.dimension === "all" ? "all" : capitals(edit.dimension ?? "")} communication`;
  const rank = edit.rank === undefined ? "another rank" : `rank ${edit.rank}`;
  /** @type {Record<string, string>} */
  const words = {
    fix_rank: `fix ${rank}`,
    fix_ranks: `fix the GPUs of ranks ${edit.ranks} together`,
    fix_group: `fix the GPUs of the tensor-parallel group of ranks ${edit.ranks}`,
    fix_node: `fix the GPUs of the node of ranks ${edit.ranks}`,
    fix_links: `fix the links that ranks ${edit.ranks} share`,
    fix_link: `fix the links of ${rank}`,
    hide: `hide ${communication}`,
    faster: `${brief(edit.factor ?? 0)} times faster ${communication}`,
    even_layers: "as many layers in every stage",
    equal_stages: "equal pipeline stages",
    equal_ranks: "equal ranks in each pipeline stage",
    no_jitter: "no jitter between micro-batches",
    no_pauses: "no pauses of hosts",
    no_hidden_waits: "no hidden waits of hosts",
    host_free: "a host that takes no time",
    balanced_experts: "evenly loaded experts",
    no_congestion: "no congested transfers",
  };
  return words[edit.name];
}

/** The name of a dimension as sentences write it: TP, gradient norm. @param {string} dimension */
function capitals(dimension) {
  if (/^(e?tp|e?dp|cp|ep|pp)$/.test(dimension)) {
    return dimension.toUpperCase();
  }
  return dimension.replace("grad_norm", "gradient_norm").replaceAll("_", " ");
}

/** A factor with six digits at most. @param {number} factor */
function brief(factor) {
  return String(Number(factor.toPrecision(6)));
}

/** @param {number} ns */
function milliseconds(ns) {
  return (ns / 1e6).toLocaleString("en-US", { minimumFractionDigits: 3, maximumFractionDigits: 3 });
}

/** @param {string} title @param {(Node | string)[]} content */
function group(title, ...content) {
  return element("fieldset", {}, element("legend", {}, title), ...content);
}

/** @param {string} word @param {number} ns @param {number} step */
function entry(word, ns, step) {
  return element(
    "tr",
    {},
    element("th", { scope: "row" }, word),
    element("td", {}, `${milliseconds(ns)} ms`),
    element("td", {}, share(ns, step)),
    element("td", { class: "quiet" }, exact(ns)),
  );
}

/** The step before and after, with its error bar. @param {Gain} gain @param {string} what @param {boolean} edited */
function drawBars(gain, what, edited) {
  const longest = Math.max(gain.step, gain.predicted, gain.step - gain.low, 1);
  const drawing = byId("what-if-bars");
  const room = Number(drawing.dataset.room);
  const left = Number(drawing.dataset.left);
  /** @param {number} ns */
  const length = (ns) => (Math.max(ns, 0) / longest) * room;
  const words = edited ? `, with these edits ${milliseconds(gain.predicted)} ms` : "";
  drawing.setAttribute("aria-label", `${what} as it was ${milliseconds(gain.step)} ms${words}`);
  drawing.querySelector(".before")?.setAttribute("width", String(length(gain.step)));
  drawing.querySelector(".after")?.setAttribute("width", String(edited ? length(gain.predicted) : 0));
  const [low, high] = [gain.step - gain.high, gain.step - gain.low].map((ns) => left + length(ns));
  const whisker = edited ? `M${low} 42H${high}M${low} 37V47M${high} 37V47` : "";
  drawing.querySelector(".whisker")?.setAttribute("d", whisker);
}
