/** The page's entry point: puts its parts together. Only this module knows all of them. */
import { Autocomplete } from "./autocomplete.js";
import { autoscroll } from "./autoscroll.js";
import { Bench } from "./bench/bench.js";
import { BranchTree } from "./branch-tree.js";
import { Connection } from "./connection.js";
import { Conversation } from "./conversation.js";
import { byId } from "./dom.js";
import { KeyPrompt } from "./key-prompt.js";
import { ModelPicker } from "./model-picker.js";
import { ReplayDialog } from "./replay-dialog.js";
import { announce } from "./screen-reader.js";
import { SettingsForm } from "./settings-form.js";
import { bindShortcuts } from "./shortcuts.js";
import { StreamsPanel } from "./streams-panel.js";
import { ThroughputChart } from "./throughput-chart.js";

const STATES = { connecting: "connecting", open: "connected", reconnecting: "reconnecting\u2026", waiting: "no connection", locked: "wants a key", refused: "refused" };

const keyPrompt = new KeyPrompt();
const connection = new Connection(() => keyPrompt.key);
const model = new ModelPicker(byId("model", HTMLSelectElement), () => keyPrompt.key);
const question = byId("question", HTMLTextAreaElement);
const settingsForm = new SettingsForm(byId("steering", HTMLFormElement));
const client = () => connection.client;
const bench = new Bench();
const settings = () => bench.settings({ ...settingsForm.settings, model: model.value });
const conversation = new Conversation(byId("turns", HTMLElement), client, settings);
const branchTree = new BranchTree(byId("branches", HTMLElement), (card) => conversation.walk(card));
const replayDialog = new ReplayDialog(client);
const autocomplete = new Autocomplete(client, () => model.value);
const streamsPanel = new StreamsPanel(byId("streams", HTMLDetailsElement), {
  key: () => keyPrompt.key,
  connected: () => connection.state === "open",
  mine: (requestId) => conversation.running.find(({ answer }) => answer.requestId === requestId)?.answer.label ?? "",
});

function showRunning() {
  const { running } = conversation;
  document.body.classList.toggle("running", running.length > 0);
  const paused = running.length > 0 && running.every((card) => card.answer.state === "paused");
  byId("pause-all", HTMLButtonElement).textContent = paused ? "Resume" : "Pause";
  byId("stop-all", HTMLButtonElement).disabled = byId("pause-all", HTMLButtonElement).disabled = !running.length;
}

function readRates() {
  const answers = conversation.running.map((card) => card.answer);
  const sum = (/** @type {number[]} */ values) => values.reduce((all, value) => all + value, 0);
  const rate = sum(answers.map((answer) => (answer.state === "writing" ? answer.meter.rate : 0)));
  const credit = sum(answers.map((answer) => answer.credit));
  byId("rate", HTMLElement).textContent = rate.toFixed(rate && rate < 10 ? 1 : 0);
  byId("credit", HTMLElement).textContent = String(credit);
  const first = conversation.cards.at(-1)?.answer.meter.firstMs;
  byId("first", HTMLElement).textContent = first ? String(Math.round(first)) : "\u2013";
  return { rate, credit, running: answers.length > 0 };
}

function showConnection() {
  const { state, why } = connection;
  const element = byId("connection", HTMLElement);
  if (element.dataset.state !== state && ["open", "reconnecting", "waiting"].includes(state)) announce(STATES[state]);
  element.dataset.state = state;
  byId("connection-state", HTMLElement).textContent = STATES[state];
  byId("trouble", HTMLElement).hidden = state === "open" && !why || state === "connecting" && !conversation.turns.length;
  byId("trouble-why", HTMLElement).textContent = why || (state === "locked" ? "This server wants a key." : "Connecting\u2026");
  byId("try-now", HTMLButtonElement).hidden = state === "open" || state === "reconnecting";
  byId("try-now", HTMLButtonElement).textContent = state === "locked" ? "Enter a key" : "Try now";
  byId("ask", HTMLButtonElement).disabled = state !== "open";
  const ready = connection.client?.ready;
  if (ready?.models.length) model.show(ready.catalog ?? ready.models.map((name) => ({ name })));
  showKey();
  streamsPanel.update();
}

function showKey() {
  const { state, why } = connection;
  if (state === "locked") keyPrompt.ask(why);
  else if (state === "open") keyPrompt.done();
  else if (state !== "connecting") keyPrompt.wait(why);
  byId("keyed", HTMLElement).hidden = !keyPrompt.key;
}

function countDown() {
  if (connection.state !== "waiting") return;
  const seconds = Math.max(0, Math.ceil((connection.due - performance.now()) / 1000));
  byId("trouble-why", HTMLElement).textContent = `${connection.why} Next try in ${seconds} s.`;
}

function ask() {
  const text = question.value.trim();
  if (!text || connection.state !== "open" || !settingsForm.report()) return;
  conversation.ask(text, Number(byId("times", HTMLSelectElement).value));
  question.value = "";
  showRunning();
}

/** The workbench is the conversation with tools beside it. */
function show() {
  const view = ["#typing", "#workbench"].includes(location.hash) ? location.hash : "#conversation";
  byId("conversation", HTMLElement).hidden = view === "#typing";
  byId("typing", HTMLElement).hidden = view !== "#typing";
  bench.open = view === "#workbench";
  document.body.classList.toggle("benched", bench.open);
  branchTree.draw(conversation.turns);
  for (const link of document.querySelectorAll("nav a")) {
    const here = link.getAttribute("href") === view;
    here ? link.setAttribute("aria-current", "page") : link.removeAttribute("aria-current");
  }
  autocomplete.cancel();
}

const help = byId("help", HTMLDialogElement);
bindShortcuts({
  stop: () => conversation.stop(),
  toggle: () => conversation.toggle(),
  interject: () => conversation.running.at(-1)?.open(),
  warmer: (steps) => settingsForm.nudge("temperature", steps),
  write: () => question.focus(),
  help: () => help.showModal(),
});
settingsForm.onadjust = (/** @type {Record<string, number>} */ params) => conversation.adjust(params);
settingsForm.onpace = (/** @type {number} */ pace) => conversation.running.forEach((card) => (card.answer.pace = pace));
conversation.onchange = () => {
  showRunning();
  branchTree.draw(conversation.turns);
};
conversation.onguard = (/** @type {any} */ event) => bench.guards.receive(event);
bench.guards.onchange = (/** @type {any[]} */ guards) => bench.open && conversation.adjust({ guards });
connection.onchange = showConnection;

byId("composer", HTMLFormElement).addEventListener("submit", (event) => {
  event.preventDefault();
  ask();
});
question.addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  ask();
});
byId("pause-all", HTMLButtonElement).addEventListener("click", () => conversation.toggle());
byId("stop-all", HTMLButtonElement).addEventListener("click", () => conversation.stop());
byId("clear", HTMLButtonElement).addEventListener("click", () => conversation.clear());
byId("open-replay", HTMLButtonElement).addEventListener("click", () => replayDialog.open());
byId("show-help", HTMLButtonElement).addEventListener("click", () => help.showModal());
byId("try-now", HTMLButtonElement).addEventListener("click", () => connection.state === "locked" ? keyPrompt.ask("") : connection.open());
byId("worker", HTMLInputElement).addEventListener("change", (event) => connection.use(/** @type {HTMLInputElement} */ (event.target).checked));
byId("link", HTMLFormElement).addEventListener("submit", (event) => {
  event.preventDefault();
  connection.open();
});
byId("forget-key", HTMLButtonElement).addEventListener("click", () => {
  keyPrompt.forget();
  connection.open();
});
keyPrompt.onkey = () => connection.open();
addEventListener("online", () => connection.state === "waiting" && connection.open());
// What is being written ends with the page. Some browsers drop what is said at the last moment, others know no earlier one.
for (const leaving of ["beforeunload", "pagehide"]) addEventListener(leaving, () => connection.client?.close());
addEventListener("hashchange", show);

const wide = matchMedia("(min-width: 60rem)");
const sides = [byId("panel", HTMLDetailsElement), byId("bench", HTMLDetailsElement)];
const unfold = () => sides.forEach((side) => (side.open = wide.matches));
wide.addEventListener("change", unfold);

unfold();
show();
showRunning();
autoscroll(byId("turns", HTMLElement));
new ThroughputChart(byId("chart", HTMLElement), readRates);
setInterval(countDown, 250);
connection.open();
