/** The page: puts its parts together. Only this module knows all of them. */
import { announce } from "./screen-reader.js";
import { Chart } from "./throughput-chart.js";
import { Connection } from "./connection.js";
import { Controls } from "./settings-form.js";
import { Conversation } from "./conversation.js";
import { the } from "./dom.js";
import { follow } from "./autoscroll.js";
import * as keys from "./shortcuts.js";
import { Streams } from "./streams-panel.js";
import { Typing } from "./autocomplete.js";
import { Unlock } from "./key-prompt.js";

const STATES = { connecting: "connecting", open: "connected", reconnecting: "reconnecting\u2026", waiting: "no connection", locked: "wants a key", refused: "refused" };

const unlock = new Unlock();
const connection = new Connection(() => unlock.key);
const model = the("model", HTMLSelectElement);
const question = the("question", HTMLTextAreaElement);
const controls = new Controls(the("steering", HTMLFormElement));
const client = () => connection.client;
const settings = () => ({ ...controls.settings, model: model.value });
const conversation = new Conversation(the("turns", HTMLElement), client, settings);
const typing = new Typing(client, () => model.value);
const streams = new Streams(the("streams", HTMLDetailsElement), {
  key: () => unlock.key,
  connected: () => connection.state === "open",
  mine: (requestId) => conversation.running.find(({ answer }) => answer.requestId === requestId)?.answer.label ?? "",
});

function showRunning() {
  const { running } = conversation;
  document.body.classList.toggle("running", running.length > 0);
  const paused = running.length > 0 && running.every((card) => card.answer.state === "paused");
  the("pause-all", HTMLButtonElement).textContent = paused ? "Resume" : "Pause";
  the("stop-all", HTMLButtonElement).disabled = the("pause-all", HTMLButtonElement).disabled = !running.length;
}

function read() {
  const answers = conversation.running.map((card) => card.answer);
  const sum = (/** @type {number[]} */ values) => values.reduce((all, value) => all + value, 0);
  const rate = sum(answers.map((answer) => (answer.state === "writing" ? answer.meter.rate : 0)));
  const credit = sum(answers.map((answer) => answer.credit));
  the("rate", HTMLElement).textContent = rate.toFixed(rate && rate < 10 ? 1 : 0);
  the("credit", HTMLElement).textContent = String(credit);
  const first = conversation.cards.at(-1)?.answer.meter.firstMs;
  the("first", HTMLElement).textContent = first ? String(Math.round(first)) : "\u2013";
  return { rate, credit, running: answers.length > 0 };
}

function showConnection() {
  const { state, why } = connection;
  const place = the("connection", HTMLElement);
  if (place.dataset.state !== state && ["open", "reconnecting", "waiting"].includes(state)) announce(STATES[state]);
  place.dataset.state = state;
  the("connection-state", HTMLElement).textContent = STATES[state];
  the("trouble", HTMLElement).hidden = state === "open" && !why || state === "connecting" && !conversation.turns.length;
  the("trouble-why", HTMLElement).textContent = why || (state === "locked" ? "This server wants a key." : "Connecting\u2026");
  the("try-now", HTMLButtonElement).hidden = state === "open" || state === "reconnecting";
  the("try-now", HTMLButtonElement).textContent = state === "locked" ? "Enter a key" : "Try now";
  the("ask", HTMLButtonElement).disabled = state !== "open";
  const models = connection.client?.ready.models ?? [];
  if (models.length) model.replaceChildren(...models.map((name) => new Option(name, name, false, name === model.value)));
  showKey();
  streams.look();
}

function showKey() {
  const { state, why } = connection;
  if (state === "locked") unlock.ask(why);
  else if (state === "open") unlock.done();
  else if (state !== "connecting") unlock.wait(why);
  the("keyed", HTMLElement).hidden = !unlock.key;
}

function countDown() {
  if (connection.state !== "waiting") return;
  const seconds = Math.max(0, Math.ceil((connection.due - performance.now()) / 1000));
  the("trouble-why", HTMLElement).textContent = `${connection.why} Next try in ${seconds} s.`;
}

function ask() {
  const text = question.value.trim();
  if (!text || connection.state !== "open") return;
  conversation.ask(text, Number(the("times", HTMLSelectElement).value));
  question.value = "";
  showRunning();
}

/** @param {boolean} typed */
function show(typed) {
  the("conversation", HTMLElement).hidden = typed;
  the("typing", HTMLElement).hidden = !typed;
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.getAttribute("href") === (typed ? "#typing" : "#conversation");
    here ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
  typing.cancel();
}

const help = the("help", HTMLDialogElement);
keys.listen({
  stop: () => conversation.stop(),
  toggle: () => conversation.toggle(),
  interject: () => conversation.running.at(-1)?.open(),
  warmer: (steps) => controls.nudge("temperature", steps),
  write: () => question.focus(),
  help: () => help.showModal(),
});
controls.onadjust = (/** @type {Record<string, number>} */ params) => conversation.adjust(params);
controls.onpace = (/** @type {number} */ pace) => conversation.running.forEach((card) => (card.answer.pace = pace));
conversation.onchange = showRunning;
connection.onchange = showConnection;

the("composer", HTMLFormElement).addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
question.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  ask();
});
the("pause-all", HTMLButtonElement).addEventListener("click", () => conversation.toggle());
the("stop-all", HTMLButtonElement).addEventListener("click", () => conversation.stop());
the("clear", HTMLButtonElement).addEventListener("click", () => conversation.clear());
the("show-help", HTMLButtonElement).addEventListener("click", () => help.showModal());
the("try-now", HTMLButtonElement).addEventListener("click", () => connection.state === "locked" ? unlock.ask("") : connection.open());
the("worker", HTMLInputElement).addEventListener("change", (event) => connection.use(/** @type {HTMLInputElement} */ (event.target).checked));
the("link", HTMLFormElement).addEventListener("submit", (event) => {
  event.preventDefault();
  connection.open();
});
the("forget-key", HTMLButtonElement).addEventListener("click", () => {
  unlock.forget();
  connection.open();
});
unlock.onkey = () => connection.open();
addEventListener("online", () => connection.state === "waiting" && connection.open());
// What is being written ends with the page. Some browsers drop what is said at the last moment, others know no earlier one.
for (const leaving of ["beforeunload", "pagehide"]) addEventListener(leaving, () => connection.client?.close());
addEventListener("hashchange", () => show(location.hash === "#typing"));

const wide = matchMedia("(min-width: 60rem)");
const panel = the("panel", HTMLDetailsElement);
const unfold = () => (panel.open = wide.matches);
wide.addEventListener("change", unfold);

unfold();
show(location.hash === "#typing");
showRunning();
follow(the("turns", HTMLElement));
new Chart(the("chart", HTMLElement), read);
setInterval(countDown, 250);
connection.open();
