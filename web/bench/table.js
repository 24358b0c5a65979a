/** A table that the reader edits, and tools that read it and write into it. Knows DOM and rows. */
import { button, element } from "../dom.js";
import { sanitize } from "../sanitize.js";

const BEGIN = [["item", "price", "count"], ["apples", "0.40", "120"], ["pears", "0.55", "80"], ["quinces", "1.20", "15"]];
const MAX_ROWS = 200;
const CHANGED_MS = 1600;

/** @returns {import("./tool-shelf.js").PageTool} */
export function table() {
  const shown = element("table", "editable");
  const body = element("div");
  body.append(shown, button("Add a row", () => add(BEGIN[0].map(() => "")), "plain"));

  const fields = () => [...shown.rows].map((row) => [...row.querySelectorAll("input")]);
  const columns = () => (fields()[0] ?? []).map((field) => field.value);
  const rows = () => fields().slice(1).map((row) => Object.fromEntries(row.map((field, at) => [columns()[at], field.value])));

  /** @param {string[]} values */
  function add(values) {
    const row = element("tr");
    const head = !shown.rows.length;
    for (const [at, value] of values.entries()) {
      const cell = element(head ? "th" : "td");
      const field = element("input");
      field.value = value;
      field.setAttribute("aria-label", head ? `Name of column ${at + 1}` : `${columns()[at]}, row ${shown.rows.length}`);
      cell.append(field);
      row.append(cell);
    }
    shown.append(row);
  }

  /** @param {{ row: number, column: string, value: string | number }} given */
  function write({ row, column, value }) {
    const at = columns().indexOf(column);
    if (at < 0) throw new Error(`there is no column "${column}"; there are ${columns().join(", ")}`);
    if (!(row >= 1 && row <= Math.min(shown.rows.length, MAX_ROWS))) throw new Error(`there is no row ${row}: they count from 1`);
    if (row === shown.rows.length) add(BEGIN[0].map(() => ""));
    const field = fields()[row][at];
    field.value = sanitize(String(value));
    field.classList.add("changed");
    setTimeout(() => field.classList.remove("changed"), CHANGED_MS);
    return rows()[row - 1];
  }

  for (const row of BEGIN) add(row);
  return {
    title: "Table",
    element: body,
    tools: [
      {
        name: "read_table",
        description: "All rows of the user's table.",
        parameters: { type: "object", properties: {}, additionalProperties: false },
        run: () => rows(),
      },
      {
        name: "write_cell",
        description: "Change one cell of the user's table. Rows count from 1; the one behind the last is new.",
        parameters: {
          type: "object",
          properties: { row: { type: "integer" }, column: { type: "string" }, value: { type: "string" } },
          required: ["row", "column", "value"],
          additionalProperties: false,
        },
        asks: true,
        run: write,
      },
    ],
  };
}
