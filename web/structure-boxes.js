/**
 * The boxes for structure: a JSON schema that the next answer must fit, and tools that it may call. What is no JSON,
 * or no schema or tools, is said below its box. Knows the page's form; what is done with them is its user's business.
 */

/** @typedef {{ field: HTMLTextAreaElement, check: (value: any) => string }} Box */

export class StructureBoxes {
  /** @type {Box[]} */ #boxes;
  #schema;
  #tools;

  /** @param {HTMLFormElement} form */
  constructor(form) {
    this.#schema = this.#box(form, "schema", (value) =>
      isObject(value) || typeof value === "boolean" ? "" : "A JSON schema is an object.");
    this.#tools = this.#box(form, "tools", (value) =>
      Array.isArray(value) && value.every(isTool) ? "" : "Tools are a list of objects, each with a name.");
    this.#boxes = [this.#schema, this.#tools];
  }

  /** What `start` takes of them. */
  get options() {
    const schema = read(this.#schema), tools = read(this.#tools);
    return {
      grammar: schema === undefined ? undefined : { json_schema: schema },
      tools: (tools ?? []).map((/** @type {any} */ tool) => tool.function ?? tool),
    };
  }

  /** Whether all can be read; the first that cannot is shown. */
  report() {
    const wrong = this.#boxes.find((box) => problem(box) && !box.field.closest("[hidden]"));
    if (!wrong) return true;
    for (let fold = wrong.field.closest("details"); fold; fold = fold.parentElement?.closest("details") ?? null) fold.open = true;
    wrong.field.focus();
    return false;
  }

  /** @param {HTMLFormElement} form @param {string} name @param {Box["check"]} check @returns {Box} */
  #box(form, name, check) {
    const field = /** @type {HTMLTextAreaElement} */ (form.elements.namedItem(name));
    const box = { field, check };
    const why = /** @type {HTMLElement} */ (document.getElementById(`${name}-problem`));
    field.addEventListener("input", () => {
      why.textContent = problem(box);
      why.hidden = !why.textContent;
      field.setAttribute("aria-invalid", String(!why.hidden));
    });
    return box;
  }
}

/** @param {Box} box @returns {string} */
function problem({ field, check }) {
  if (!field.value.trim()) return "";
  try {
    return check(JSON.parse(field.value));
  } catch (error) {
    return `This is not JSON: ${error instanceof Error ? error.message : error}`;
  }
}

/** @param {Box} box */
const read = (box) => (box.field.value.trim() && !problem(box) ? JSON.parse(box.field.value) : undefined);

/** @param {unknown} value @returns {value is Record<string, any>} */
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/** @param {unknown} value */
const isTool = (value) => isObject(value) && typeof (value.function ?? value).name === "string";
