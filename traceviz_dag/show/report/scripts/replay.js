/** Replays a step's graph with any times: the counterpart of analyze/causes/step_work.py, from replay_data.py's columns.
 * All times are integers of nanoseconds, which doubles hold exactly; what is not there is -Infinity. */

/**
 * @typedef {object} StepFacts
 * @property {number | null} number of the training step; null without one
 * @property {number[]} ranks
 * @property {(number | null)[]} stages
 * @property {number[]} kernels of each rank
 * @property {number[]} segments of each rank
 * @property {number[]} sections of each rank
 * @property {(string | null)[]} dimensions
 * @property {Record<string, string>} refusals
 * @property {number[]} late_begin_ns
 * @property {number[]} host_end_ns
 * @property {{of_stage: number[], group: number[], factors: number[], sets: number} | null} layers
 * @property {number[]} expert_shares
 */

/**
 * What the work of a step takes.
 * @typedef {object} Times
 * @property {Float64Array} duration per kernel; of a member of a meeting, the transfer
 * @property {Float64Array} lag per kernel
 * @property {Float64Array} launch per kernel
 * @property {Float64Array} section per section of the host
 * @property {Float64Array} sectionLag per section
 * @property {Uint8Array} waits per section: whether the call that ends before it waits for the GPU
 * @property {Float64Array} hostEnd per rank
 * @property {boolean[]} launched per rank: whether its launches are as they were
 */

/** One step: its kernels, its graph, and the times as measured. */
export class Step {
  /** Per segment the node that its kernels wait at: itself, or the arrival of its one kernel. */
  entry = new Int32Array();
  /** Per kernel its segment, and the section that launches it; -1 without one. */
  segmentOf = new Int32Array();
  sectionOf = new Int32Array();
  /** Nodes at which the sections, the ranks' ends and the meetings begin, and how many there are. */
  sections = 0;
  ends = 0;
  meetings = 0;
  nodes = 0;
  /** Edges with a lag of their own: of launches per segment, of hosts per section, of ends per rank, of transfers. */
  launchEdges = new Int32Array();
  hostEdges = new Int32Array();
  endEdges = new Int32Array();
  transferEdges = new Int32Array();
  /** Edges of calls that wait for the GPU, and the section that begins behind each. */
  heldEdges = new Int32Array();
  heldSections = new Int32Array();
  /** Nodes in the order of a replay; where the edges of each waiting node begin; what each edge waits for. */
  order = new Int32Array();
  edgeBegins = new Int32Array();
  sources = new Int32Array();

  /** @param {StepFacts} facts @param {Record<string, Float64Array>} columns */
  constructor(facts, columns) {
    this.facts = facts;
    this.columns = columns;
    this.kernelBegins = sums(facts.kernels);
    this.sectionBegins = sums(facts.sections);
    const kernels = columns.duration_ns.length;
    /** Place of each kernel's rank. */
    this.rankOf = new Int32Array(kernels);
    for (let rank = 0; rank < facts.ranks.length; rank++) {
      this.rankOf.fill(rank, this.kernelBegins[rank], this.kernelBegins[rank + 1]);
    }
    this.joined = new Uint8Array(kernels);
    for (const kernel of columns.member_kernel) this.joined[kernel] = 1;
    /** Kernels whose time is the rank's own. */
    this.own = Uint8Array.from(this.joined, (joined, kernel) => (joined || columns.dimension[kernel] ? 0 : 1));
    this.firsts = sums(columns.length);
    this.place();
    this.connect();
    /** @type {Times} */
    this.times = {
      duration: columns.duration_ns,
      lag: columns.lag_ns,
      launch: columns.launch_ns.map((launch) => (launch < 0 ? -Infinity : launch)),
      section: columns.section_ns,
      sectionLag: columns.section_lag_ns,
      waits: new Uint8Array(columns.section_ns.length).fill(1),
      hostEnd: Float64Array.from(facts.host_end_ns),
      launched: facts.ranks.map(() => true),
    };
  }

  /** Number the nodes. */
  place() {
    const { joined, firsts } = this;
    const segments = this.columns.length.length;
    let arrivals = 0;
    this.entry = new Int32Array(segments);
    for (let segment = 0; segment < segments; segment++) {
      const kernel = firsts[segment];
      if (joined[kernel]) {
        this.entry[segment] = segments + arrivals++;
      } else this.entry[segment] = segment;
    }
    this.sections = segments + arrivals;
    this.ends = this.sections + this.columns.section_ns.length;
    this.meetings = this.ends + this.facts.ranks.length;
    this.nodes = this.meetings + this.columns.member_meeting.reduce((most, one) => Math.max(most, one + 1), 0);
    this.segmentOf = new Int32Array(this.columns.duration_ns.length);
    this.sectionOf = new Int32Array(this.columns.duration_ns.length);
    for (let segment = 0; segment < segments; segment++) {
      this.segmentOf.fill(segment, firsts[segment], firsts[segment + 1]);
    }
  }

  /** Lay the edges out, and find an order in which every node comes behind those that it waits for. */
  connect() {
    /** @type {number[]} */
    const waiting = [];
    /** @type {number[]} */
    const waitedFor = [];
    /** @param {number} node @param {number} other */
    const wait = (node, other) => waiting.push(node) && waitedFor.push(other) - 1;
    const { columns, facts, entry, segmentOf, sectionOf } = this;
    this.launchEdges = new Int32Array(columns.length.length).fill(-1);
    this.hostEdges = new Int32Array(columns.section_ns.length).fill(-1);
    this.endEdges = new Int32Array(facts.ranks.length);
    let segment = 0;
    facts.ranks.forEach((_, rank) => {
      const last = segment + facts.segments[rank];
      const begin = this.sectionBegins[rank];
      for (; segment < last; segment++) {
        if (columns.follows[segment]) wait(entry[segment], segment - 1);
        const section = columns.section[segment];
        sectionOf.fill(section < 0 ? -1 : begin + section, this.firsts[segment], this.firsts[segment + 1]);
        if (section >= 0) this.launchEdges[segment] = wait(entry[segment], this.sections + begin + section);
        if (segment + 1 === last || !columns.follows[segment + 1]) wait(this.ends + rank, segment);
      }
      const sections = this.sectionBegins[rank + 1];
      for (let section = begin + 1; section < sections; section++) {
        this.hostEdges[section] = wait(this.sections + section, this.sections + section - 1);
      }
      this.endEdges[rank] = wait(this.ends + rank, this.sections + sections - 1);
    });
    this.transferEdges = new Int32Array(columns.member_kernel.length).fill(-1);
    const ahead = new Set(columns.member_ahead);
    columns.member_kernel.forEach((kernel, member) => {
      const meeting = this.meetings + columns.member_meeting[member];
      wait(meeting, entry[segmentOf[kernel]]);
      if (!ahead.has(member)) this.transferEdges[member] = wait(segmentOf[kernel], meeting);
    });
    /** @type {number[]} */
    const held = [];
    columns.waiting.forEach((node, edge) => {
      const laid = wait(node, columns.waited_for[edge]);
      if (node >= this.sections && node < this.ends) held.push(laid);
    });
    this.heldEdges = Int32Array.from(held);
    this.heldSections = this.heldEdges.map((edge) => waiting[edge] - this.sections);
    this.inOrder(waiting, waitedFor);
  }

  /** @param {number[]} waiting @param {number[]} waitedFor */
  inOrder(waiting, waitedFor) {
    const begins = new Int32Array(this.nodes + 1);
    const open = new Int32Array(this.nodes);
    for (const node of waiting) open[node]++;
    for (const node of waitedFor) begins[node + 1]++;
    for (let node = 0; node < this.nodes; node++) begins[node + 1] += begins[node];
    const filled = begins.slice();
    const users = new Int32Array(waiting.length);
    waitedFor.forEach((node, edge) => {
      users[filled[node]++] = waiting[edge];
    });
    this.order = new Int32Array(this.nodes);
    let known = 0;
    for (let node = 0; node < this.nodes; node++) if (open[node] === 0) this.order[known++] = node;
    for (let done = 0; done < known; done++) {
      const node = this.order[done];
      for (let user = begins[node]; user < begins[node + 1]; user++) {
        if (--open[users[user]] === 0) this.order[known++] = users[user];
      }
    }
    if (known < this.nodes) throw new Error("pieces of work wait for one another in a circle");
    // Edges by the node that waits.
    this.edgeBegins = new Int32Array(this.nodes + 1);
    for (const node of waiting) this.edgeBegins[node + 1]++;
    for (let node = 0; node < this.nodes; node++) this.edgeBegins[node + 1] += this.edgeBegins[node];
    const next = this.edgeBegins.slice();
    this.sources = new Int32Array(waiting.length);
    /** @param {Int32Array} edges by the order in which they were laid out @param {Int32Array} places */
    const moved = (edges, places) => edges.map((edge) => (edge < 0 ? -1 : places[edge]));
    const places = new Int32Array(waiting.length);
    waiting.forEach((node, edge) => {
      places[edge] = next[node]++;
      this.sources[places[edge]] = waitedFor[edge];
    });
    this.launchEdges = moved(this.launchEdges, places);
    this.hostEdges = moved(this.hostEdges, places);
    this.endEdges = moved(this.endEdges, places);
    this.transferEdges = moved(this.transferEdges, places);
    this.heldEdges = moved(this.heldEdges, places);
  }

  /**
   * When every node ends, from the begin of the first rank's step.
   * @param {Times} times
   * @param {Float64Array} [earliest] per node, before when it does not end
   */
  replay(times, earliest) {
    const lags = new Float64Array(this.sources.length);
    const result = new Float64Array(this.nodes);
    this.weigh(times, result, lags);
    const { order, edgeBegins, sources } = this;
    for (let place = 0; place < order.length; place++) {
      const node = order[place];
      const high = edgeBegins[node + 1];
      let start = edgeBegins[node] === high ? 0 : -Infinity;
      for (let edge = edgeBegins[node]; edge < high; edge++) {
        const arrival = result[sources[edge]] + lags[edge];
        if (arrival > start) start = arrival;
      }
      result[node] += start;
      if (earliest && earliest[node] > result[node]) result[node] = earliest[node];
    }
    return result;
  }

  /**
   * Per node, when it ends at the earliest if communications that are not matched with all their members end as they did.
   * @param {Float64Array} ends the replay with the times before
   * @param {Times} before
   * @param {Times} after those of the replay that is asked about
   */
  unmetEnds(ends, before, after) {
    const result = new Float64Array(this.nodes).fill(-Infinity);
    for (const kernel of this.columns.unmet_kernel) {
      const segment = this.segmentOf[kernel];
      let later = 0;
      for (let behind = kernel + 1; behind < this.firsts[segment + 1]; behind++) {
        later += after.lag[behind] + after.duration[behind] - before.lag[behind] - before.duration[behind];
      }
      result[segment] = Math.max(result[segment], ends[segment] + later);
    }
    return result;
  }

  /**
   * What nodes take, and what passes on edges.
   * @param {Times} times
   * @param {Float64Array} durations filled in
   * @param {Float64Array} lags filled in
   */
  weigh(times, durations, lags) {
    const { firsts, entry, launchEdges } = this;
    for (let segment = 0; segment < entry.length; segment++) {
      const first = firsts[segment];
      if (entry[segment] !== segment) {
        durations[entry[segment]] = times.lag[first];
        if (launchEdges[segment] >= 0) lags[launchEdges[segment]] = times.launch[first];
        continue;
      }
      let behind = 0;
      let launched = -Infinity;
      for (let kernel = firsts[segment + 1] - 1; kernel >= first; kernel--) {
        behind += times.lag[kernel] + times.duration[kernel];
        launched = Math.max(launched, times.launch[kernel] + behind);
      }
      durations[segment] = behind;
      if (launchEdges[segment] >= 0) lags[launchEdges[segment]] = launched - behind;
    }
    for (let section = 0; section < times.section.length; section++) {
      durations[this.sections + section] = times.sectionLag[section];
      if (this.hostEdges[section] >= 0) lags[this.hostEdges[section]] = times.section[section];
    }
    this.facts.ranks.forEach((_, rank) => {
      durations[this.sections + this.sectionBegins[rank]] = times.section[this.sectionBegins[rank]];
      lags[this.endEdges[rank]] = times.hostEnd[rank];
    });
    for (let held = 0; held < this.heldEdges.length; held++) {
      lags[this.heldEdges[held]] = times.waits[this.heldSections[held]] ? 0 : -Infinity;
    }
    const kernels = this.columns.member_kernel;
    for (let member = 0; member < kernels.length; member++) {
      if (this.transferEdges[member] >= 0) lags[this.transferEdges[member]] = times.duration[kernels[member]];
    }
  }

  /**
   * How long the step takes: the longest of any rank, from its own begin to its end. One that begins earlier than it was
   * measured, and so waits for others, has no longer step by that.
   * @param {Times} times
   * @param {Float64Array} [earliest] as of ``replay``
   */
  lengthOf(times, earliest) {
    const ends = this.replay(times, earliest);
    let longest = -Infinity;
    for (let rank = 0; rank < this.facts.ranks.length; rank++) {
      const section = this.sectionBegins[rank];
      const begin = Math.max(ends[this.sections + section], this.columns.section_ns[section]);
      longest = Math.max(longest, ends[this.ends + rank] - begin);
    }
    return longest;
  }
}

/**
 * The times without launches, and without any lag that the graph does not explain.
 * @param {Times} times
 * @returns {Times}
 */
export function withoutLags(times) {
  return {
    ...times,
    duration: times.duration.map((duration) => Math.max(duration, 0)),
    lag: new Float64Array(times.lag.length),
    launch: new Float64Array(times.launch.length).fill(-Infinity),
    sectionLag: new Float64Array(times.sectionLag.length),
  };
}

/**
 * Where each of some pieces begins if they lie one behind the other, and where the last ends.
 * @param {ArrayLike<number>} lengths
 */
export function sums(lengths) {
  const result = new Float64Array(lengths.length + 1);
  for (let place = 0; place < lengths.length; place++) result[place + 1] = result[place] + lengths[place];
  return result;
}
