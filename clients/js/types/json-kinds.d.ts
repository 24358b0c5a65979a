/** Kinds of JSON values: what `typeof` takes for one is told apart. @module */
/** @param {unknown} value */
export function kindOf(value: unknown): "string" | "number" | "bigint" | "boolean" | "symbol" | "undefined" | "object" | "function" | "null" | "array";
