/** The chain of an audit record, verified on its raw lines.
 *
 * Each line is hashed as it was written, with its own hash cut out. It is never parsed for that: `JSON.parse` rounds
 * large numbers, and the text of a guest may look like the field that is cut out, so that its place is sought from the
 * end of the line.
 */

import { sha256 } from "@noble/hashes/sha2.js";
import { bytesToHex, utf8ToBytes } from "@noble/hashes/utils.js";

export type Head = { sequence: number; hash: string };
export type Verdict =
  | { ok: true; entries: number; first: number; head: Head; headHolds: boolean | null }
  | { ok: false; line: number; why: string };

const END =
  /,"hash":"([0-9a-f]{64})"(,"kind":"[a-z_]{1,64}","previous":"([0-9a-f]{64})","sequence":(\d{1,16})\})$/;
const GENESIS = "0".repeat(64);

export function verify(text: string, kept: Head | null = null): Verdict {
  const lines = text.split("\n");
  if (lines.at(-1) === "") lines.pop();
  if (lines.length === 0) return { ok: false, line: 1, why: "there is no entry" };
  let previous: string | null = null;
  let next: number | null = null;
  let first = 0;
  let headHolds: boolean | null = kept ? false : null;

  for (const [index, line] of lines.entries()) {
    const found = END.exec(line);
    if (!found) return { ok: false, line: index + 1, why: "it does not have the form of an entry" };
    const [, hash = "", rest = "", before = "", number = ""] = found;
    const sequence = Number(number);
    const bare = line.slice(0, found.index) + rest;
    if (bytesToHex(sha256(utf8ToBytes(bare))) !== hash)
      return { ok: false, line: index + 1, why: "its content does not have the hash that it names" };
    if (next === null) {
      first = sequence;
      if (sequence === 0 && before !== GENESIS)
        return { ok: false, line: index + 1, why: "it is the first entry and names one before" };
    } else if (sequence !== next || before !== previous) {
      return { ok: false, line: index + 1, why: `it does not follow entry ${next - 1}` };
    }
    if (kept && kept.sequence === sequence) headHolds = kept.hash === hash;
    previous = hash;
    next = sequence + 1;
  }
  return {
    ok: true,
    entries: lines.length,
    first,
    head: { sequence: (next ?? 1) - 1, hash: previous ?? "" },
    headHolds,
  };
}
