/**
 * The `ai` package, with three of its providers.
 * @module
 */

import { createDeepSeek } from "@ai-sdk/deepseek";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import * as ai from "ai";
import { z } from "zod";
import { readFile } from "node:fs/promises";

const RESULT = "30 degrees ⟦It is 30 degrees in Rome.⟧";
const ANSWER = "It is 30 degrees in Rome.";
const QUESTION =
  'What is the weather in Rome? ⟦<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>⟧';

const PET = 'Name a pet. ⟦{"name":"Tom","kind":"cat","age":3}⟧'; // one provider asks for any JSON, whatever the schema

const { version } = JSON.parse(await readFile(new URL("node_modules/ai/package.json", import.meta.url)));
const own = { baseURL: `${process.argv[2]}/v1`, apiKey: "none" };
const compatible = createOpenAICompatible({ ...own, name: "midstream", supportsStructuredOutputs: true });
const models = {
  "openai-compatible": compatible("toy"),
  openai: createOpenAI(own).chat("toy"),
  deepseek: createDeepSeek(own)("toy"),
};
const Pet = z.object({ name: z.string().max(20), kind: z.enum(["cat", "dog"]), age: z.int().min(0).max(30) });
const weather = ai.tool({
  description: "The weather of a city.",
  inputSchema: z.object({ city: z.string() }),
  execute: () => RESULT,
});

function same(said, meant) {
  if (said !== meant) throw new Error(`it said ${JSON.stringify(said)}`);
}

const checks = {
  async "a tool loop"(fields) {
    const stopWhen = ai.stepCountIs(3);
    same((await ai.generateText({ ...fields, prompt: QUESTION, tools: { weather }, stopWhen })).text, ANSWER);
  },
  async "a tool loop, streamed"(fields) {
    const stopWhen = ai.stepCountIs(3);
    same(await ai.streamText({ ...fields, prompt: QUESTION, tools: { weather }, stopWhen }).text, ANSWER);
  },
  async "a call that is required"(fields) {
    const asked = { ...fields, prompt: QUESTION, tools: { weather }, toolChoice: "required" };
    const { toolCalls } = await ai.generateText(asked);
    same(typeof toolCalls[0].input.city, "string");
  },
  async "a typed answer"(fields) {
    const asked = { ...fields, prompt: PET, output: ai.Output.object({ schema: Pet }) };
    Pet.parse((await ai.generateText(asked)).output);
  },
};

for (const [provider, model] of Object.entries(models)) {
  for (const [check, run] of Object.entries(checks)) {
    const trouble = await run({ model, maxRetries: 0 }).then(() => "", (error) => `${error} ${error.cause ?? ""}`);
    console.log(JSON.stringify({ version, check: `${check}, by ${provider}`, trouble: trouble.slice(0, 500) }));
  }
}
