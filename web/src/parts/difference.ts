/** Two texts as one list of lines: what is the same, what was there before, what is there after. */

import { diffLines } from "diff";

export type Line = { kind: "same" | "before" | "after"; text: string };

// Beyond this many changed lines both texts are shown as they are.
const MOST_CHANGES = 2000;
const CONTEXT_LINES = 3;

/** Returns the lines, or null where the texts have too little in common to be compared quickly. */
export function linesOf(before: string, after: string): Line[] | null {
  const parts = diffLines(before, after, { maxEditLength: MOST_CHANGES });
  if (!parts) return null;
  return parts.flatMap(({ value, added, removed }) => {
    const kind = added ? "after" : removed ? "before" : "same";
    const lines = value.split("\n");
    if (lines.at(-1) === "") lines.pop();
    return lines.map((text): Line => ({ kind, text }));
  });
}

/** Returns the changed lines with a few around them; null stands for lines that are left out. */
export function folded(lines: Line[]): (Line | null)[] {
  const near = new Set<number>();
  lines.forEach((line, index) => {
    if (line.kind === "same") return;
    for (let place = index - CONTEXT_LINES; place <= index + CONTEXT_LINES; place++) near.add(place);
  });
  const found: (Line | null)[] = [];
  lines.forEach((line, index) => {
    if (near.has(index)) found.push(line);
    else if (found.at(-1) !== null) found.push(null);
  });
  return found;
}

/** The text of these bytes, or null where they are none: valid UTF-8 without NUL, perhaps cut within a character. */
export function textOf(content: ArrayBuffer, isCut = false): string | null {
  try {
    const text = new TextDecoder("utf-8", { fatal: true }).decode(content, { stream: isCut });
    return text.includes("\0") ? null : text;
  } catch {
    return null;
  }
}
