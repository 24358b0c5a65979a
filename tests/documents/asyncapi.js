// Say what the AsyncAPI parser finds wrong with the document on standard input: one line each, errors alone.
import { readFileSync } from "node:fs";
import { Parser } from "@asyncapi/parser";

const ERROR = 0;
const { document, diagnostics } = await new Parser().parse(readFileSync(0, "utf8"));
for (const { severity, path, message } of diagnostics) {
  if (severity === ERROR) console.log(path.join("."), message);
}
if (!document) process.exit(1);
