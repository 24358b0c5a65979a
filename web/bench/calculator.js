/** The calculator: a tool that does sums, and shows the last of them. Knows DOM and arithmetic. */
import { element } from "../dom.js";
import { sanitize } from "../sanitize.js";
import { evaluate } from "./arithmetic.js";

const SHOWN = 4;

/** @returns {import("./tool-shelf.js").PageTool} */
export function calculator() {
  const tape = element("ol", "tape");
  return {
    title: "Calculator",
    element: tape,
    tools: [{
      name: "calculate",
      description: "The value of an arithmetic expression, such as 12 * (3 + 4.5).",
      parameters: {
        type: "object",
        properties: { expression: { type: "string" } },
        required: ["expression"],
        additionalProperties: false,
      },
      run({ expression }) {
        const value = evaluate(expression);
        const line = element("li");
        line.append(element("span", "", sanitize(expression)), element("b", "", `= ${value}`));
        tape.append(line);
        while (tape.childElementCount > SHOWN) tape.firstElementChild?.remove();
        return String(value);
      },
    }],
  };
}
