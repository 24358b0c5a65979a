/**
 * The `openai` package for Node.
 * @module
 */

import OpenAI from "openai";
import { zodFunction, zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";
import { readFile } from "node:fs/promises";

const RESULT = "30 degrees ⟦It is 30 degrees in Rome.⟧";
const ANSWER = "It is 30 degrees in Rome.";
const QUESTION =
  'What is the weather in Rome? ⟦<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>⟧';

const client = new OpenAI({ baseURL: `${process.argv[2]}/v1`, apiKey: "none", maxRetries: 0 });
const { version } = JSON.parse(await readFile(new URL("node_modules/openai/package.json", import.meta.url)));
const Pet = z.object({ name: z.string().max(20), kind: z.enum(["cat", "dog"]), age: z.int().min(0).max(30) });
const weather = zodFunction({
  name: "weather",
  description: "The weather of a city.",
  parameters: z.object({ city: z.string() }),
  function: () => RESULT,
});
const asked = { model: "toy", messages: [{ role: "user", content: QUESTION }], tools: [weather] };
const hello = [{ role: "user", content: "Hello" }];

function same(said, meant) {
  if (said !== meant) throw new Error(`it said ${JSON.stringify(said)}`);
}

const checks = {
  async "a tool loop"() {
    same(await client.chat.completions.runTools(asked).finalContent(), ANSWER);
  },
  async "a tool loop, streamed"() {
    same(await client.chat.completions.runTools({ ...asked, stream: true }).finalContent(), ANSWER);
  },
  async "a call that is required, and one by name"() {
    for (const tool_choice of ["required", { type: "function", function: { name: "weather" } }]) {
      const fields = { model: "toy", messages: asked.messages, tools: [weather], parallel_tool_calls: false };
      const answer = await client.chat.completions.parse({ ...fields, tool_choice });
      same(typeof answer.choices[0].message.tool_calls[0].function.parsed_arguments.city, "string");
    }
  },
  async "a typed answer"() {
    const response_format = zodResponseFormat(Pet, "pet");
    const answer = await client.chat.completions.parse({ model: "toy", messages: hello, response_format });
    Pet.parse(answer.choices[0].message.parsed);
  },
};

for (const [check, run] of Object.entries(checks)) {
  const trouble = await run().then(() => "", (error) => String(error).slice(0, 500));
  console.log(JSON.stringify({ version, check, trouble }));
}
