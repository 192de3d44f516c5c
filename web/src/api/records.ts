/** Sandboxes that have ended, as the API tells of them, and the lines of a replay. */

import { ask } from "./client";
import { Problem, type ProblemBody } from "./problem";
import type { Sandbox } from "./types";

export type EndedSandbox = {
  sandbox: Sandbox;
  ended_at: string;
  reason: string;
  contexts: { id: string; language: string; cells: number }[];
  cells: number;
  failed: number;
  last_outcome: string | null;
  cpu_seconds: number;
  peak_memory_bytes: number;
  size_bytes: number;
};

export type RecordList = { is_kept: boolean; items: EndedSandbox[]; next_cursor: string | null };

export type Difference = { what: string; expected: string | null; actual: string | null };
export type Compared = {
  number: number;
  code: string;
  differences: Difference[];
  is_known: boolean;
  is_skipped: boolean;
};
export type Replayed = {
  cells: number;
  same: number;
  first_difference: number | null;
  dropped_cells: number;
  not_fixed: string[];
};

type Line =
  | ({ type: "cell" } & Compared)
  | ({ type: "replayed" } & Replayed)
  | ({ type: "problem" } & ProblemBody)
  | { type: "keepalive" };

/** Runs a record again; calls `onCell` as each cell compares, and returns the sums. */
export async function replay(
  path: string,
  body: unknown,
  signal: AbortSignal,
  onCell: (cell: Compared) => void,
): Promise<Replayed> {
  const answer = await ask(path, { method: "POST", body, signal, accept: "application/x-ndjson" });
  for await (const text of lines(answer)) {
    const line = JSON.parse(text) as Line;
    if (line.type === "cell") onCell(line);
    if (line.type === "replayed") return line;
    if (line.type === "problem") throw new Problem(line, line.status);
  }
  throw new Problem({ code: "cut_off", detail: "The replay broke off." }, 0);
}

async function* lines(answer: Response): AsyncGenerator<string> {
  const reader = answer.body?.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  while (reader) {
    const { done, value } = await reader.read();
    rest += decoder.decode(value, { stream: !done });
    const found = rest.split("\n");
    rest = found.pop() ?? "";
    yield* found.filter(Boolean);
    if (done) break;
  }
  if (rest) yield rest;
}
