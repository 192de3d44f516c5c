/** Sandboxes that have ended, as the API tells of them, and the lines of a replay. */

import { ask } from "./client";
import { Problem, type ProblemBody } from "./problem";
import type * as api from "./schema";

export type EndedSandbox = api.EndedSandbox;

export type RecordList = api.RecordList;

export type Difference = api.Difference;
export type Compared = api.CellComparison;
export type Replayed = api.ReplayedLine;

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
