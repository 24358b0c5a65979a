/**
 * Arithmetic: the value of an expression, as a calculator has it. Pure; it evaluates no code.
 *
 *     sum     = product (("+" | "-") product)*
 *     product = sign (("*" | "/" | "%") sign)*
 *     sign    = ("+" | "-") sign | power
 *     power   = atom ("^" sign)?
 *     atom    = number | name | name "(" sum ("," sum)* ")" | "(" sum ")"
 */

const TOKEN = /\s*(?:(\d+\.?\d*(?:e[+-]?\d+)?|\.\d+(?:e[+-]?\d+)?)|([a-z]\w*)|(\*\*|[-+*/%^(),\u00d7\u00f7\u2212]))/iy;
const SPELT = new Map([["**", "^"], ["\u00d7", "*"], ["\u00f7", "/"], ["\u2212", "-"]]);
const MAX_LENGTH = 1000;
const MAX_DEPTH = 100;

const CONSTANTS = /** @type {Record<string, number>} */ ({ pi: Math.PI, e: Math.E });
const FUNCTIONS = /** @type {Record<string, (...given: number[]) => number>} */ ({
  sqrt: Math.sqrt, abs: Math.abs, round: Math.round, floor: Math.floor, ceil: Math.ceil, min: Math.min, max: Math.max,
  sin: Math.sin, cos: Math.cos, tan: Math.tan, ln: Math.log, log: Math.log10, exp: Math.exp,
});
const OPERATORS = /** @type {Record<string, (a: number, b: number) => number>} */ ({
  "+": (a, b) => a + b, "-": (a, b) => a - b, "*": (a, b) => a * b, "/": (a, b) => a / b, "%": (a, b) => a % b,
});

/** Throws an Error that says what cannot be read, or that it has no value. @param {string} expression */
export function evaluate(expression) {
  const value = new Reader(tokensOf(expression)).whole();
  if (!Number.isFinite(value)) throw new Error(`${expression} has no value`);
  return Number(value.toPrecision(12)); // what binary fractions add behind that is nobody's sum
}

/** @param {string} text */
function tokensOf(text) {
  if (text.length > MAX_LENGTH) throw new Error(`an expression has at most ${MAX_LENGTH} characters`);
  const trimmed = text.trim();
  const tokens = [];
  TOKEN.lastIndex = 0;
  while (TOKEN.lastIndex < trimmed.length) {
    const at = TOKEN.lastIndex;
    const found = TOKEN.exec(trimmed);
    if (!found) throw new Error(`"${trimmed.slice(at).trim().slice(0, 20)}" is no arithmetic`);
    const said = found[0].trim();
    tokens.push(SPELT.get(said) ?? said.toLowerCase());
  }
  return tokens;
}

class Reader {
  #tokens;
  #at = 0;
  #depth = 0;

  /** @param {string[]} tokens */
  constructor(tokens) {
    this.#tokens = tokens;
  }

  whole() {
    const value = this.#sum();
    if (this.#at < this.#tokens.length) throw new Error(`"${this.#tokens[this.#at]}" stands where nothing is due`);
    return value;
  }

  #sum() {
    return this.#chain(["+", "-"], () => this.#product());
  }

  #product() {
    return this.#chain(["*", "/", "%"], () => this.#sign());
  }

  /** @param {string[]} operators @param {() => number} operand */
  #chain(operators, operand) {
    let value = operand();
    for (let operator; (operator = this.#take(operators));) value = OPERATORS[operator](value, operand());
    return value;
  }

  /** @returns {number} */
  #sign() {
    if (++this.#depth > MAX_DEPTH) throw new Error("it is nested too deep");
    const sign = this.#take(["+", "-"]);
    const value = sign ? this.#sign() : this.#power();
    this.#depth--;
    return sign === "-" ? -value : value;
  }

  #power() {
    const base = this.#atom();
    return this.#take(["^"]) ? base ** this.#sign() : base;
  }

  #atom() {
    const token = this.#tokens[this.#at++];
    if (token === undefined) throw new Error("something is missing at the end");
    if (/^[\d.]/.test(token)) return Number(token);
    if (token === "(") return this.#closed([this.#sum()])[0];
    if (Object.hasOwn(CONSTANTS, token)) return CONSTANTS[token];
    if (!Object.hasOwn(FUNCTIONS, token)) throw new Error(`"${token}" is not known`);
    if (!this.#take(["("])) throw new Error(`"(" is due behind "${token}"`);
    const given = [this.#sum()];
    while (this.#take([","])) given.push(this.#sum());
    return FUNCTIONS[token](...this.#closed(given));
  }

  /** @template T @param {T} value */
  #closed(value) {
    if (!this.#take([")"])) throw new Error('")" is missing');
    return value;
  }

  /** @param {string[]} wanted */
  #take(wanted) {
    const token = this.#tokens[this.#at];
    if (!wanted.includes(token)) return null;
    this.#at++;
    return token;
  }
}
