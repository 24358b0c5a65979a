/**
 * The throughput chart: tokens a second, and credit granted and not used yet, over the last half minute. Knows uPlot
 * and two numbers; knows no streams.
 */
import uPlot from "./vendor/uplot/uPlot.esm.js";

const SPAN_S = 30;
const INTERVAL_MS = 250;
const HEIGHT = 132;

export class ThroughputChart {
  /** @type {number[]} */ #times = [];
  /** @type {(number | null)[]} */ #rates = [];
  /** @type {(number | null)[]} */ #credits = [];
  #read;
  #container;
  /** @type {uPlot} */ #plot;
  #idle = 0;

  /** @param {HTMLElement} container @param {() => { rate: number, credit: number, running: boolean }} read */
  constructor(container, read) {
    this.#container = container;
    this.#read = read;
    this.#plot = this.#draw();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.#redraw());
    new ResizeObserver(() => this.#resize()).observe(container);
    setInterval(() => this.#sample(), INTERVAL_MS);
  }

  #draw() {
    const style = getComputedStyle(this.#container);
    const colour = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
    const axis = (/** @type {string} */ scale, /** @type {string} */ stroke, /** @type {number} */ side) => {
      return { scale, stroke, side, size: 38, font: "11px system-ui, sans-serif", grid: { show: side === 3, stroke: colour("--hair"), width: 1 }, ticks: { show: false }, space: 28 };
    };
    const line = (/** @type {string} */ scale, /** @type {string} */ stroke, /** @type {number} */ width) => {
      return { scale, stroke, width, points: { show: false }, spanGaps: false };
    };
    const options = {
      width: Math.max(this.#container.clientWidth, 120), height: HEIGHT, padding: /** @type {[number, number, number, number]} */ ([8, 0, 4, 0]),
      legend: { show: false }, cursor: { show: false },
      scales: { x: { time: false, range: () => this.#span() }, rate: { range: fromZero }, credit: { range: fromZero } },
      axes: [{ show: false }, axis("rate", colour("--accent"), 3), axis("credit", colour("--second"), 1)],
      series: [{}, line("rate", colour("--accent"), 1.75), line("credit", colour("--second"), 1.25)],
    };
    return new uPlot(/** @type {any} */ (options), this.#data, this.#container);
  }

  /** @returns {any} */
  get #data() {
    return [this.#times, this.#rates, this.#credits];
  }

  /** @returns {[number, number]} */
  #span() {
    const last = this.#times.at(-1) ?? SPAN_S;
    return [last - SPAN_S, last];
  }

  #redraw() {
    this.#plot.destroy();
    this.#plot = this.#draw();
  }

  #resize() {
    const width = this.#container.clientWidth;
    if (width && width !== this.#plot.width) this.#plot.setSize({ width, height: HEIGHT });
  }

  /** While nothing runs, the chart stands still and costs nothing. */
  #sample() {
    const { rate, credit, running } = this.#read();
    this.#idle = running ? 0 : this.#idle + 1;
    if (this.#idle > 8) return;
    this.#times.push(performance.now() / 1000);
    this.#rates.push(rate);
    this.#credits.push(running ? credit : null);
    while (this.#times[0] < this.#times[this.#times.length - 1] - SPAN_S) {
      for (const series of this.#data) series.shift();
    }
    this.#plot.setData(this.#data);
    this.#container.setAttribute("aria-label", `${Math.round(rate)} tokens a second, ${credit} tokens of credit left`);
  }
}

/** @param {unknown} _plot @param {number} _least @param {number | null} most @returns {[number, number]} */
function fromZero(_plot, _least, most) {
  return [0, Math.max(20, (most ?? 0) * 1.15)];
}
