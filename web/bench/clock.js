/** The clock: a tool that tells the time, here or in another zone. Knows DOM and the calendar. */
import { element } from "../dom.js";

const SECOND_MS = 1000;

/** @returns {import("./tool-shelf.js").PageTool} */
export function clock() {
  const face = element("time", "clock");
  const tick = () => {
    const now = new Date();
    face.textContent = told(now);
    face.dateTime = now.toISOString();
  };
  tick();
  setInterval(tick, SECOND_MS);
  return {
    title: "Clock",
    element: face,
    tools: [{
      name: "clock",
      description: "The date and the time now, here or in a time zone such as Europe/Paris.",
      parameters: { type: "object", properties: { zone: { type: "string" } }, additionalProperties: false },
      run: ({ zone }) => told(new Date(), zone),
    }],
  };
}

/** @param {Date} moment @param {string} [timeZone] one that is not known throws a RangeError, which says so */
function told(moment, timeZone) {
  return moment.toLocaleString("en-GB", { dateStyle: "full", timeStyle: "medium", ...(timeZone && { timeZone }) });
}
