/** Output as lines of styled text: SGR colours, carriage returns and backspaces act; everything else is made visible.
 *
 * Not a terminal: nothing moves the cursor upwards, sets a title, makes a link or touches the clipboard. A progress bar
 * that returns the carriage looks as it should; any other escape is spelled out.
 */

import { visible } from "../parts/format";

export type Stream = "stdout" | "stderr";
export type Span = { text: string; style: string };
export type Line = { spans: Span[]; stream: Stream; at: number | null; cut: number };

/** Characters of a line that are shown; the rest is counted. */
export const LINE_CHARACTERS = 10_000;
/** Lines that are kept for the view; the oldest go first. */
export const MOST_LINES = 200_000;

const ESCAPE = "\u001b";
// What acts on the line that it stands in; all else is put beside the earlier.
const ACTING = /[\r\b\u001b]/;
// Text that is shown as it is: most of what programs print.
const PLAIN = /^[\t\n\u0020-\u007e]*$/;
const SGR = /^\u001b\[([0-9;]{0,60})m/;
const COLOURS = ["black", "red", "green", "yellow", "blue", "magenta", "cyan", "white"];

export class OutputLines {
  readonly lines: Line[] = [];
  dropped = 0;
  private readonly open = { stdout: new OpenLine("stdout"), stderr: new OpenLine("stderr") };

  append(stream: Stream, text: string, at: number | null): void {
    const open = this.open[stream];
    const isActing = ACTING.test(text);
    const isPlain = !isActing && PLAIN.test(text);
    let position = 0;

    while (position < text.length) {
      const end = text.indexOf("\n", position);
      // A whole line in which nothing acts needs no look at each character.
      if (!isActing && end !== -1 && end - position <= LINE_CHARACTERS && open.isFresh) {
        const piece = text.slice(position, end);
        this.lines.push(open.whole(isPlain ? piece : visible(piece), at));
        position = end + 1;
        continue;
      }
      open.write(end === -1 ? text.slice(position) : text.slice(position, end), at);
      this.place(open);
      if (end === -1) break;
      open.end();
      position = end + 1;
    }
    if (this.lines.length > MOST_LINES) {
      const surplus = this.lines.length - MOST_LINES;
      this.lines.splice(0, surplus);
      this.dropped += surplus;
      for (const each of Object.values(this.open)) each.shift(surplus);
    }
  }

  clear(): void {
    this.lines.length = 0;
    this.dropped = 0;
    this.open.stdout = new OpenLine("stdout");
    this.open.stderr = new OpenLine("stderr");
  }

  /** The text as it is shown, without styles. */
  text(): string {
    return this.lines.map((line) => line.spans.map((span) => span.text).join("")).join("\n");
  }

  private place(open: OpenLine): void {
    const line = open.line();
    if (open.index === -1) {
      open.index = this.lines.length;
      this.lines.push(line);
    } else {
      this.lines[open.index] = line;
    }
  }
}

/** The line that a stream writes now. */
class OpenLine {
  index = -1;
  private characters: string[] = [];
  private styles: string[] = [];
  private column = 0;
  private style = "";
  private pending = "";
  private at: number | null = null;
  private cut = 0;
  private readonly pen = new Pen();
  private readonly stream: Stream;

  constructor(stream: Stream) {
    this.stream = stream;
  }

  /** Whether nothing of the line has come yet. */
  get isFresh(): boolean {
    return this.index === -1 && this.characters.length === 0 && this.column === 0 && this.pending === "";
  }

  /** Returns a line that came in one piece, in the style that is set. */
  whole(text: string, at: number | null): Line {
    return {
      spans: text === "" ? [] : [{ text, style: this.style }],
      stream: this.stream,
      at,
      cut: 0,
    };
  }

  write(given: string, at: number | null): void {
    if (this.at === null) this.at = at;
    const text = this.pending + given;
    this.pending = "";
    let position = 0;

    while (position < text.length) {
      const code = text.charCodeAt(position);
      if (code === 0x0d) this.column = 0;
      else if (code === 0x08) this.column = Math.max(0, this.column - 1);
      else if (code === 0x1b) {
        const taken = this.escape(text, position);
        if (taken === 0) return;
        position += taken;
        continue;
      } else {
        const character = text.codePointAt(position) ?? 0;
        this.put(String.fromCodePoint(character));
        if (character > 0xffff) position += 1;
      }
      position += 1;
    }
  }

  end(): void {
    this.index = -1;
    this.characters = [];
    this.styles = [];
    this.column = 0;
    this.at = null;
    this.cut = 0;
    this.pending = "";
  }

  shift(lines: number): void {
    if (this.index !== -1) this.index = Math.max(-1, this.index - lines);
  }

  line(): Line {
    const spans: Span[] = [];
    let start = 0;
    for (let at = 1; at <= this.characters.length; at += 1) {
      if (at < this.characters.length && this.styles[at] === this.styles[start]) continue;
      spans.push({
        text: visible(this.characters.slice(start, at).join("")),
        style: this.styles[start] ?? "",
      });
      start = at;
    }
    return { spans, stream: this.stream, at: this.at, cut: this.cut };
  }

  private put(character: string): void {
    if (this.column >= LINE_CHARACTERS) {
      this.cut += 1;
      return;
    }
    this.characters[this.column] = character;
    this.styles[this.column] = this.style;
    this.column += 1;
  }

  /** Takes an escape, and returns how long it is; 0: its end has not come yet. */
  private escape(text: string, position: number): number {
    const rest = text.slice(position, position + 64);
    const found = SGR.exec(rest);
    if (found) {
      this.pen.set(found[1] ?? "");
      this.style = this.pen.classes();
      return found[0].length;
    }
    if (rest.length < 64 && /^\u001b(\[[0-9;]*)?$/.test(rest)) {
      this.pending = rest;
      return 0;
    }
    this.put(ESCAPE);
    return 1;
  }
}

/** Colours and weights that SGR has set. */
class Pen {
  private readonly on = new Set<string>();
  private front = "";
  private back = "";

  set(parameters: string): void {
    const codes = parameters === "" ? [0] : parameters.split(";").map((text) => Number(text || 0));
    for (let at = 0; at < codes.length; at += 1) {
      const code = codes[at] ?? 0;
      if (code === 38 || code === 48) {
        const [skipped, colour] = extended(codes, at);
        if (code === 38) this.front = colour ? `f-${colour}` : "";
        else this.back = colour ? `b-${colour}` : "";
        at += skipped;
      } else this.one(code);
    }
  }

  classes(): string {
    return [...this.on, this.front, this.back].filter(Boolean).join(" ");
  }

  private one(code: number): void {
    if (code === 0) {
      this.on.clear();
      this.front = "";
      this.back = "";
    } else if (code === 1) this.on.add("bold");
    else if (code === 2) this.on.add("dim");
    else if (code === 3) this.on.add("italic");
    else if (code === 4) this.on.add("underline");
    else if (code === 7) this.on.add("inverse");
    else if (code === 9) this.on.add("strike");
    else if (code === 22) {
      this.on.delete("bold");
      this.on.delete("dim");
    } else if (code === 23) this.on.delete("italic");
    else if (code === 24) this.on.delete("underline");
    else if (code === 27) this.on.delete("inverse");
    else if (code === 29) this.on.delete("strike");
    else if (code === 39) this.front = "";
    else if (code === 49) this.back = "";
    else if (code >= 30 && code <= 37) this.front = `f-${COLOURS[code - 30]}`;
    else if (code >= 90 && code <= 97) this.front = `f-${COLOURS[code - 90]}`;
    else if (code >= 40 && code <= 47) this.back = `b-${COLOURS[code - 40]}`;
    else if (code >= 100 && code <= 107) this.back = `b-${COLOURS[code - 100]}`;
  }
}

/** The colour of `38;5;N` or `38;2;R;G;B`, as the nearest of the eight that both themes have. */
function extended(codes: number[], at: number): [number, string] {
  if (codes[at + 1] === 5) {
    const value = codes[at + 2] ?? 0;
    if (value < 16) return [2, COLOURS[value % 8] ?? ""];
    if (value >= 232) return [2, value > 243 ? "white" : "black"];
    const cube = value - 16;
    return [2, nearest(Math.floor(cube / 36) * 51, (Math.floor(cube / 6) % 6) * 51, (cube % 6) * 51)];
  }
  if (codes[at + 1] === 2) return [4, nearest(codes[at + 2] ?? 0, codes[at + 3] ?? 0, codes[at + 4] ?? 0)];
  return [1, ""];
}

function nearest(red: number, green: number, blue: number): string {
  const bits = (red > 127 ? 1 : 0) | (green > 127 ? 2 : 0) | (blue > 127 ? 4 : 0);
  return COLOURS[bits] ?? "";
}
