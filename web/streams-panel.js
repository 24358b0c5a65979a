/**
 * The streams of the server, as a table that stands still while its numbers move. Knows DOM, and when somebody
 * looks: only then is the server asked. Whose a stream is, and whether there is a connection, is told to it.
 */
import { element } from "./dom.js";
import { watch } from "./streams-poll.js";
import { visible } from "./sanitize.js";

/** @typedef {import("./streams-poll.js").Listed} Listed @typedef {import("./streams-poll.js").Listing} Listing */
/** @typedef {import("./streams-poll.js").Totals} Totals */
/** @typedef {{ row: HTMLTableRowElement, name: HTMLElement, state: HTMLElement, numbers: HTMLElement[] }} Shown */

const COLUMNS = [["Stream", ""], ["Rate", "Tokens a second"], ["Credit", "Tokens granted and not sent yet"], ["KV", "Tokens in the cache"]];
const exact = new Intl.NumberFormat("en");
const short = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 0 });
const DOT = "\u00a0\u00b7 "; // no line begins with it

export class Streams {
  /** @type {AbortController | null} */ #watching = null;
  /** @type {Map<string, Shown>} */ #shown = new Map();
  #body = element("tbody");
  #table = element("table");
  #note = element("p", "numbers");
  #cache = element("div", "cache");
  #bar = element("div", "bar");
  #place;
  #parts;

  /**
   * @param {HTMLDetailsElement} place
   * @param {{ key: () => string, connected: () => boolean, mine: (requestId: string) => string }} parts
   */
  constructor(place, parts) {
    this.#place = place;
    this.#parts = parts;
    const head = element("tr");
    head.append(...COLUMNS.map(([name, says]) => Object.assign(element("th", "", name), { scope: "col", title: says })));
    const top = element("thead");
    top.append(head);
    this.#table.append(element("caption", "unseen", "Streams"), top, this.#body);
    this.#bar.append(element("span", "used"), element("span", "kept"));
    this.#cache.append(this.#bar, element("small", "", "KV cache"), element("small"));
    place.append(this.#note, this.#cache, this.#table);
    this.#show(null, "");
    for (const details of [place, place.parentElement?.closest("details")]) details?.addEventListener("toggle", () => this.look());
    document.addEventListener("visibilitychange", () => this.look());
  }

  /** Somebody looks now, or nobody does. */
  look() {
    const looking = this.#open && document.visibilityState === "visible" && this.#parts.connected();
    if (looking === Boolean(this.#watching)) return;
    this.#watching?.abort();
    this.#watching = looking ? new AbortController() : null;
    if (this.#watching) watch(this.#parts.key, this.#watching.signal, (listing, why) => this.#show(listing, why));
    else if (!this.#parts.connected()) this.#show(null, "There is no connection.");
  }

  get #open() {
    return this.#place.open && this.#place.parentElement?.closest("details")?.open !== false;
  }

  /** @param {Listing | null} listing @param {string} why */
  #show(listing, why) {
    this.#table.hidden = !listing?.streams.length;
    this.#note.textContent = listing ? told(listing) : why;
    this.#fillCache(listing?.server ?? null);
    this.#fill(listing?.streams ?? []);
  }

  /** A row stays the same element as long as its stream lives: what is read or chosen in it stays so. @param {Listed[]} streams */
  #fill(streams) {
    const tenants = new Set(streams.map(({ tenant }) => tenant)).size;
    const rows = new Map(streams.map((stream) => [JSON.stringify([stream.tenant, stream.request_id]), stream]));
    for (const [name, { row }] of this.#shown) {
      if (!rows.has(name)) row.remove();
    }
    this.#shown = new Map([...rows.keys()].map((name) => [name, this.#shown.get(name) ?? shown()]));
    let next = this.#body.firstElementChild;
    for (const [name, stream] of rows) {
      const one = /** @type {Shown} */ (this.#shown.get(name));
      fill(one, stream, this.#parts.mine(stream.request_id), tenants > 1);
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
function told({ streams, total, states, server }) {
  const said = Object.entries(states).filter(([, count]) => count).map(([state, count]) => `${count} ${state}`);
  if (total > streams.length) said.push(`the youngest ${streams.length} of ${total}`);
  if (server) said.push(`${Math.round(server.tokens_per_s)} a second`);
  return total ? said.map((item) => item.replaceAll(" ", "\u00a0")).join(DOT) : "No stream lives now.";
}

/** @returns {Shown} */
function shown() {
  const row = element("tr");
  const head = Object.assign(element("th"), { scope: "row" });
  const [name, state] = [element("bdi"), element("small")];
  head.append(name, state);
  const numbers = COLUMNS.slice(1).map(() => element("td"));
  row.append(head, ...numbers);
  return { row, name, state, numbers };
}

/** @param {Shown} shown @param {Listed} stream @param {string} mine @param {boolean} ofTenants */
function fill({ row, name, state, numbers }, stream, mine, ofTenants) {
  row.dataset.state = stream.state;
  row.title = `${visible(stream.request_id)}: ${exact.format(stream.tokens)} tokens, ${exact.format(stream.context_tokens)} with its prompt`;
  row.classList.toggle("mine", Boolean(mine));
  name.textContent = mine || visible(stream.request_id);
  const what = stream.paused && stream.paused !== "client" ? `paused: ${stream.paused}` : stream.state;
  state.textContent = [what, age(stream.age_s), ...(ofTenants ? [visible(stream.tenant)] : [])].join(DOT);
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
