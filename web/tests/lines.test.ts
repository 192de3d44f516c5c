import { describe, expect, it } from "vitest";
import { LINE_CHARACTERS, OutputLines } from "../src/output/lines";

function shown(...texts: string[]): string[] {
  const output = new OutputLines();
  for (const text of texts) output.append("stdout", text, 0);
  return output.lines.map((line) => line.spans.map((span) => span.text).join(""));
}

describe("lines of output", () => {
  it("are joined over pieces, and kept apart by stream", () => {
    const output = new OutputLines();
    output.append("stdout", "one\ntw", 0.1);
    output.append("stderr", "warn", 0.2);
    output.append("stdout", "o\n", 0.3);
    expect(output.lines.map((line) => [line.stream, line.spans[0]?.text, line.at])).toEqual([
      ["stdout", "one", 0.1],
      ["stdout", "two", 0.1],
      ["stderr", "warn", 0.2],
    ]);
  });

  it("are written over after a carriage return, as bars of tqdm do", () => {
    expect(shown("\r 10%|#  |", "\r100%|###|\n", "abc\b\bX\n")).toEqual(["100%|###|", "aXc"]);
    expect(shown("windows\r\nunix\n")).toEqual(["windows", "unix"]);
  });

  it("have the colours of SGR, also when an escape is cut in two", () => {
    const output = new OutputLines();
    output.append("stdout", "\u001b[1;3", 0);
    output.append("stdout", "1mred\u001b[0m plain \u001b[38;5;46mgreen\u001b[38;2;0;0;255mblue\n", 0);
    expect(output.lines[0]?.spans.map((span) => [span.text, span.style])).toEqual([
      ["red", "bold f-red"],
      [" plain ", ""],
      ["green", "f-green"],
      ["blue", "f-blue"],
    ]);
  });

  it("show every other escape, control and mark of direction", () => {
    expect(shown("\u001b]52;c;aGk=\u0007\n")).toEqual(["␛]52;c;aGk=␇"]);
    expect(shown("\u001b]8;;http://evil.test\u001b\\click\u001b]8;;\u001b\\\n")[0]).toContain(
      "http://evil.test",
    );
    expect(shown("\u001b[2J\u001b[Hgone\n")).toEqual(["␛[2J␛[Hgone"]);
    expect(shown("a\u202eb\u0000c\ud800\n")).toEqual(["a<U+202E>b␀c<U+D800>"]);
  });

  it("are bounded, each and all together", () => {
    const output = new OutputLines();
    output.append("stdout", "x".repeat(1_000_000), 0);
    expect(output.lines[0]?.spans[0]?.text.length).toBe(LINE_CHARACTERS);
    expect(output.lines[0]?.cut).toBe(1_000_000 - LINE_CHARACTERS);
    const many = new OutputLines();
    for (let at = 0; at < 30; at += 1) many.append("stdout", "y\n".repeat(10_000), 0);
    expect([many.lines.length, many.dropped]).toEqual([200_000, 100_000]);
  });

  it("read the same in one piece as character by character", () => {
    const texts = [
      "plain\n",
      "\u001b[31mred\n",
      "still red\n\n",
      "a\u202eb\n",
      "tab\there\n",
      "\r over\n",
      "end",
    ];
    const whole = new OutputLines();
    whole.append("stdout", texts.join(""), 0);
    const byLine = new OutputLines();
    for (const text of texts) byLine.append("stdout", text, 0);
    const byCharacter = new OutputLines();
    for (const character of texts.join("")) byCharacter.append("stdout", character, 0);
    expect(byLine.lines).toEqual(whole.lines);
    expect(byCharacter.lines).toEqual(whole.lines);
  });
});
