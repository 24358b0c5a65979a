/**
 * The panel of the server's streams: a table that stands still while its numbers move. Knows DOM, and when somebody
 * looks: only then is the server polled. Whose a stream is, and whether there is a connection, is passed to it.
 */
import { element } from "./dom.js";
import { sanitize } from "./sanitize.js";
import { pollStreams } from "./streams-poll.js";

/** @typedef {import("./streams-poll.js").ListedStream} ListedStream @typedef {import("./streams-poll.js").Listing} Listing */
/** @typedef {import("./streams-poll.js").Totals} Totals */
/** @typedef {{ row: HTMLTableRowElement, name: HTMLElement, state: HTMLElement, numbers: HTMLElement[] }} Row */

const COLUMNS = [["Stream", ""], ["Rate", "Tokens a second"], ["Credit", "Tokens granted and not sent yet"], ["KV", "Tokens in the cache"]];
const exact = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 0 });
const DOT = "\u00a0\u00b7 "; // no line begins with it

export class StreamsPanel {
  /** @type {AbortController | null} */ #polling = null;
  /** @type {Map<string, Row>} */ #rows = new Map();
  #body = element("tbody");
  #table = element("table");
  #note = element("p", "numbers");
  #cache = element("div", "cache");
  #bar = element("div", "bar");
  #container;
  #context;

  /**
   * @param {HTMLDetailsElement} container
   * @param {{ key: () => string, connected: () => boolean, mine: (requestId: string) => string }} context
   */
  constructor(container, context) {
    this.#container = container;
    this.#context = context;
    const head = element("tr");
    head.append(...COLUMNS.map(([name, says]) => Object.assign(element("th", "", name), { scope: "col", title: says })));
    const top = element("thead");
    top.append(head);
    this.#table.append(element("caption", "unseen", "Streams"), top, this.#body);
    this.#bar.append(element("span", "used"), element("span", "kept"));
    this.#cache.append(this.#bar, element("small", "", "KV cache"), element("small"));
    container.append(this.#note, this.#cache, this.#table);
    this.#show(null, "");
    for (const details of [container, container.parentElement?.closest("details")]) details?.addEventListener("toggle", () => this.update());
    document.addEventListener("visibilitychange", () => this.update());
  }

  /** Poll while somebody looks, and only then. */
  update() {
    const visible = this.#open && document.visibilityState === "visible" && this.#context.connected();
    if (visible === Boolean(this.#polling)) return;
    this.#polling?.abort();
    this.#polling = visible ? new AbortController() : null;
    if (this.#polling) pollStreams(this.#context.key, this.#polling.signal, (listing, why) => this.#show(listing, why));
    else if (!this.#context.connected()) this.#show(null, "There is no connection.");
  }

  get #open() {
    return this.#container.open && this.#container.parentElement?.closest("details")?.open !== false;
  }

  /** @param {Listing | null} listing @param {string} why */
  #show(listing, why) {
    this.#table.hidden = !listing?.streams.length;
    this.#note.textContent = listing ? summary(listing) : why;
    this.#fillCache(listing?.server ?? null);
    this.#fill(listing?.streams ?? []);
  }

  /** A row stays the same element as long as its stream lives: what is read or chosen in it stays so. @param {ListedStream[]} streams */
  #fill(streams) {
    const tenants = new Set(streams.map(({ tenant }) => tenant)).size;
    const rows = new Map(streams.map((stream) => [JSON.stringify([stream.tenant, stream.request_id]), stream]));
    for (const [name, { row }] of this.#rows) {
      if (!rows.has(name)) row.remove();
    }
    this.#rows = new Map([...rows.keys()].map((name) => [name, this.#rows.get(name) ?? createRow()]));
    let next = this.#body.firstElementChild;
    for (const [name, stream] of rows) {
      const one = /** @type {Row} */ (this.#rows.get(name));
      fillRow(one, stream, this.#context.mine(stream.request_id), tenants > 1);
      if (one.row === next) next = next.nextElementSibling;
      else this.#body.insertBefore(one.row, next);
    }
  }

  /** @param {Totals | null} server */
  #fillCache(server) {
    this.#cache.hidden = !server;
    if (!server) return;
    const { kv_used_tokens: used, kv_cached_tokens: kept, kv_free_tokens: free } = server;
    const all = used + kept + free;
    [used, kept].forEach((tokens, at) => {
      const part = /** @type {HTMLElement} */ (this.#bar.children[at]);
      part.style.width = `${(100 * tokens) / (all || 1)}%`;
    });
    const words = [`${brief(used)} in use`, `${brief(kept)} kept`, `of ${brief(all)}`].join(DOT);
    /** @type {Element} */ (this.#cache.lastElementChild).textContent = words;
  }
}

/** @param {Listing} listing */
function summary({ streams, total, states, server }) {
  const said = Object.entries(states).filter(([, count]) => count).map(([state, count]) => `${count} ${state}`);
  if (total > streams.length) said.push(`the youngest ${streams.length} of ${total}`);
  if (server) said.push(`${Math.round(server.tokens_per_s)} a second`);
  return total ? said.map((item) => item.replaceAll(" ", "\u00a0")).join(DOT) : "No stream lives now.";
}

/** @returns {Row} */
function createRow() {
  const row = element("tr");
  const head = Object.assign(element("th"), { scope: "row" });
  const [name, state] = [element("bdi"), element("small")];
  head.append(name, state);
  const numbers = COLUMNS.slice(1).map(() => element("td"));
  row.append(head, ...numbers);
  return { row, name, state, numbers };
}

/** @param {Row} row @param {ListedStream} stream @param {string} mine @param {boolean} severalTenants */
function fillRow({ row, name, state, numbers }, stream, mine, severalTenants) {
  row.dataset.state = stream.state;
  row.title = `${sanitize(stream.request_id)}: ${exact.format(stream.tokens)} tokens, ${exact.format(stream.context_tokens)} with its prompt`;
  row.classList.toggle("mine", Boolean(mine));
  name.textContent = mine || sanitize(stream.request_id);
  const what = stream.paused && stream.paused !== "client" ? `paused: ${stream.paused}` : stream.state;
  state.textContent = [sanitize(what), age(stream.age_s), ...(severalTenants ? [sanitize(stream.tenant)] : [])].join(DOT);
  const rate = stream.state === "running" ? stream.tokens_per_s.toFixed(stream.tokens_per_s < 100 ? 1 : 0) : "\u2013";
  const texts = [rate, brief(stream.credit), brief(stream.context_tokens)];
  texts.forEach((text, at) => (numbers[at].textContent = text));
}

/** As much as a narrow column holds. @param {number} tokens */
function brief(tokens) {
  return (tokens < 10_000 ? exact : short).format(tokens);
}

/** @param {number} seconds */
function age(seconds) {
  if (seconds < 60) return `${Math.floor(seconds)}\u00a0s`;
  return seconds < 3600 ? `${Math.floor(seconds / 60)}\u00a0min` : `${Math.floor(seconds / 3600)}\u00a0h`;
}
