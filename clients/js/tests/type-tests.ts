// Type tests: what a TypeScript user sees of the package, checked by tsc through its `exports` and never run.

import {
  Agent,
  connect,
  clientSecret,
  connectWorker,
  exposeInWorker,
  callArguments,
  runCall,
  toolMessage,
  ConnectionLost,
  MidstreamError,
  StreamFailed,
  type AgentOptions,
  type Call,
  type Chunk,
  type Client,
  type Close,
  type Completion,
  type FunctionTool,
  type Outcome,
  type Run,
  type StartOptions,
  type Stream,
} from "midstream";
import { WebSocket as Ws } from "ws";

export async function reads(client: Client): Promise<string> {
  const messages = [{ role: "user", content: "Hi" }];
  const options: StartOptions = { messages, temperature: 0.5, window: 1 };
  const stream: Stream = await client.start({ ...options, credit: { limit: 0, prefetch: 4 } });
  for await (const chunk of stream) {
    const { index, count, text, tokens, logprobs, end }: Chunk = chunk;
    console.log(index + count === end, text.length, tokens?.[0], logprobs?.[0]?.logprob);
  }
  const piped: ReadableStream<Chunk> = stream.toReadableStream();
  const next: Chunk | null = await stream.next({ timeout: 100 });
  console.log(piped.locked, next?.text, stream.final?.usage.completion_tokens);
  console.log(stream.pauseReason === "memory");
  return stream.text;
}

export async function calls(client: Client): Promise<unknown[]> {
  const weather: FunctionTool = { name: "weather", run: ({ city }: { city: string }) => city };
  const stream = await client.start({ prompt: "Hi", tools: [weather], tool_choice: "weather" });
  const results: unknown[] = [];
  for await (const call of stream.toolCalls()) {
    const { call_id, arguments: given }: Call = call;
    results.push(call_id, given, await runCall(call, [weather]), toolMessage(call, 3), callArguments(call).city);
  }
  const { age } = await client.parse<{ age: number }>({ type: "object" }, { prompt: "Hi" });
  const { toolCalls, reasoning, message }: Completion = await client.complete({ messages: [stream.message] });
  // @ts-expect-error: a tool has a name
  await client.start({ prompt: "Hi", tools: [{ description: "nothing" }] });
  return [...results, age.toFixed(), toolCalls.length, reasoning, message.role];
}

export async function runs(client: Client): Promise<string> {
  const sum: FunctionTool = {
    name: "sum",
    run: ({ a, b }: { a: number; b: number }, { signal, progress }) => (progress(1, 2), signal.aborted ? 0 : a + b),
  };
  const options: AgentOptions = { tools: [sum], approve: ({ name }) => name === "sum" || "no", maxCalls: 3, temperature: 0 };
  const run: Run = await client.run(new Agent(options), "What is 3 and 4?", { signal: AbortSignal.timeout(1000) });
  for await (const event of run) {
    if (event.type === "tool_outcome") console.log(event.call.name, event.content?.length, event.error);
    if (event.type === "token") console.log(event.delta);
  }
  const [{ call, index }]: Outcome[] = run.outcomes;
  await run.amend(call, { a: 1, b: 2 });
  await run.give(call, 7);
  // @ts-expect-error: an agent's tools have names
  new Agent({ tools: [{ run: () => 1 }] });
  const fork = await run.fork({ at: index ?? 0, seed: 3 });
  return fork.answer();
}

export async function steers(stream: Stream): Promise<number[]> {
  stream.onevent = (event) => {
    if (event.type === "rewound") console.log(event.text_length);
    // @ts-expect-error: of what is no token there is no delta
    if (event.type === "paused") console.log(event.delta);
  };
  // @ts-expect-error: a parameter misspelt
  await stream.adjust({ temprature: 1 });
  // @ts-expect-error: an index is a number
  await stream.rewind("3");
  const index: number = await stream.pause({ kv: "release" });
  return [index, await stream.adjust({ top_p: 0.5, at: 3 }), await stream.cancel()];
}

export async function connects(worker: Worker): Promise<Completion> {
  const here = await connect(undefined, { apiKey: "k", signal: AbortSignal.timeout(1000) });
  await connect("http://host", { WebSocket: Ws, reconnectMs: 0, silenceMs: 0 });
  const secret: string = await clientSecret("http://host", { apiKey: "k", origin: "https://app.example" });
  await connect("http://host", { apiKey: () => secret });
  await connectWorker(worker, undefined, { apiKey: async () => secret, silenceMs: 9000 });
  // @ts-expect-error: a key is text
  await connect("http://host", { apiKey: 7 });
  const there: typeof here = await connectWorker(worker);
  exposeInWorker();
  there.onclose = ({ code, reason, retryable }: Close) => console.log(code, reason, retryable);
  there.onstate = (state: "open" | "reconnecting" | "closed") => console.log(state === there.state);
  const taken: Stream = await there.attach("r", { after: 3, had: { text: "a", index: 1 }, window: 8 });
  // @ts-expect-error: what was had has an index
  await there.attach("r", { after: taken.seq, had: { text: "a" } });
  there.ongoingaway = ({ deadline_ms }) => console.log(deadline_ms);
  console.log(there.ready.models, there.state === "open", (await there.closed).code);
  return there.complete({ prompt: [1, 2, 3], signal: AbortSignal.timeout(1000) });
}

export function explains(error: unknown): string {
  if (error instanceof StreamFailed) return error.final.finish_reason;
  if (error instanceof ConnectionLost) return String(error.closeCode);
  if (!(error instanceof MidstreamError)) return "";
  return `${error.code} ${error.status} ${error.retryAfterMs} ${error.requestId}`;
}
