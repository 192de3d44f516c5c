/** JSON text laid out for reading, without parsing it: numbers beyond 2^53 stay as they were written. */

const MOST_DEPTH = 40;

/** Whether all numbers are surely those that were written: a fraction or a long number may have had more digits. */
export function isExact(value: unknown): boolean {
  const waiting = [value];
  while (waiting.length > 0) {
    const each = waiting.pop();
    if (typeof each === "number" && !Number.isSafeInteger(each)) return false;
    if (typeof each === "object" && each !== null) for (const item of Object.values(each)) waiting.push(item);
  }
  return true;
}

export function laidOut(text: string, most = 100_000): string {
  let depth = 0;
  const parts: string[] = [];
  let size = 0;
  const put = (piece: string) => {
    parts.push(piece);
    size += piece.length;
  };
  const line = () => `\n${"  ".repeat(Math.min(depth, MOST_DEPTH))}`;
  const token = /"(?:[^"\\]|\\.)*"|[{}[\],:]|[^\s"{}[\],:]+/gy;

  for (let found = next(token, text); found && size < most; found = next(token, text)) {
    const piece = found[0];
    if (piece === "{" || piece === "[") {
      depth += 1;
      const rest = text.slice(token.lastIndex, token.lastIndex + 40).trimStart();
      put(rest[0] === "}" || rest[0] === "]" ? piece : piece + line());
    } else if (piece === "}" || piece === "]") {
      depth -= 1;
      const last = parts.at(-1) ?? "";
      put(last === "{" || last === "[" ? piece : line() + piece);
    } else if (piece === ",") put(`,${line()}`);
    else if (piece === ":") put(": ");
    else put(piece);
  }
  return size < most ? parts.join("") : `${parts.join("").slice(0, most)}\n…`;
}

function next(token: RegExp, text: string): RegExpExecArray | null {
  while (token.lastIndex < text.length && /\s/.test(text[token.lastIndex] ?? "")) token.lastIndex += 1;
  return token.exec(text);
}
